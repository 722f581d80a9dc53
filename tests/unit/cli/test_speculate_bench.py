"""Prompts with and without drafts take turns, and what speculation changes fails the command."""

import pytest

from slipstream.services.cli.speculate_bench import CellResult, OnlyLoopsError, SpeculateBench
from slipstream.services.cli.speculate_bench_client import ShortAnswerError, WrongTokensError
from slipstream.services.cli.speculate_bench_options import SpeculateBenchOptions
from slipstream.services.cli.speculate_bench_plan import make_plan
from slipstream.services.cli.speculate_bench_report import row_of
from slipstream.shared.measure.pairs import MIN_NUM_PAIRS
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.model.cache_directory import Report

from .speculating_stack import NUM_TOKENS, SpeculatingStack, counting, step_ratio


def ignore(_line: str) -> None:
    """Take a line of progress."""


async def measured(
    stack: SpeculatingStack, report: Report = ignore, **options: object
) -> list[CellResult]:
    await stack.start()
    defaults = {"sets": "code", "prompts": 3, "batches": "1", "temperatures": "0"}
    plan = make_plan(
        SpeculateBenchOptions(output=NUM_TOKENS, **{**defaults, **options})  # type: ignore[arg-type] # of each test
    )
    return await SpeculateBench(plan, stack.bus, report).measure()


def asked(stack: SpeculatingStack) -> list[tuple[int | None, str | None]]:
    """Return seed and way of all requests for prompts of the set."""
    return [(each.seed, each.speculation) for each in stack.requests if each.messages]


async def test_figures_are_those_of_the_answers() -> None:
    (result,) = await measured(SpeculatingStack())
    row = row_of(result)

    # 60 steps of 4 ms against 20 that take 1.4 times as long.
    assert pytest.approx(60 / (20 * 1.4)) == row["speedup"]
    assert row["speedup_low"] == row["speedup"] == row["speedup_high"]
    alpha = 2 / 3
    assert pytest.approx((1 - alpha**5) / (1 - alpha) / 1.4) == row["predicted_speedup"]
    assert (pytest.approx(2 / 3), 0.5) == (row["acceptance_tested"], row["acceptance_drafted"])
    assert (3.0, 0) == (row["tokens_per_step"], row["looped"])
    assert MIN_NUM_PAIRS == len(result.ratios)


async def test_steps_with_drafts_are_priced_at_every_length_the_worker_takes() -> None:
    (result,) = await measured(SpeculatingStack())

    assert result.step_ratios is not None
    assert [1.0, 2.0, 4.0] == [gamma for gamma, _ in result.step_ratios.points]
    for gamma, ratio in result.step_ratios.points:
        assert pytest.approx(step_ratio(gamma)) == ratio


async def test_both_ways_take_turns_within_a_pair_and_from_pair_to_pair() -> None:
    stack = SpeculatingStack()
    await measured(stack, max_pairs=2)

    first, *pairs = asked(stack)[2:]
    assert (3, "off") == first  # all prompts were asked once, to know what has to come
    on_off = ("ngram", "off")
    off_on = on_off[::-1]
    expected = [
        (seed, way)
        for order in ((off_on, on_off, off_on), (on_off, off_on, on_off))
        for seed, ways in zip((1, 2, 3), order, strict=True)
        for way in ways
    ]
    assert expected == pairs


async def test_a_batch_is_asked_at_once_and_always_full() -> None:
    stack = SpeculatingStack()
    await measured(stack, batches="2", max_pairs=1)

    truth, pair = asked(stack)[:4], asked(stack)[4:]
    assert [1, 2, 3, 1] == [seed for seed, _ in truth]
    assert [(1, "off"), (2, "off"), (1, "ngram"), (2, "ngram")] == pair[:4]
    assert [(3, "ngram"), (1, "ngram"), (3, "off"), (1, "off")] == pair[4:]


async def test_every_cell_has_a_result() -> None:
    found = await measured(
        SpeculatingStack(), sets="chat,code", batches="1,2", temperatures="0,0.5", max_pairs=1
    )

    assert [
        (name, batch, temperature)
        for name in ("chat", "code")
        for temperature in (0.0, 0.5)
        for batch in (1, 2)
    ] == [(each.cell.set_name, each.cell.batch, each.cell.temperature) for each in found]


async def test_another_token_with_speculation_fails_and_names_the_prompt() -> None:
    def changed(request: GenerateRequest) -> list[int]:
        tokens = counting(request)
        if request.speculation == "ngram" and request.seed == 2:
            tokens[17] = 5
        return tokens

    with pytest.raises(
        WrongTokensError,
        match=r"code-02, .*speculation ngram: token 5 at output position 17, and 2017",
    ):
        await measured(SpeculatingStack(changed))


async def test_an_answer_that_ends_early_is_no_measurement() -> None:
    with pytest.raises(ShortAnswerError, match=r"after 60 of 61 tokens \(length\)"):
        await measured(SpeculatingStack(num_given=60))


def looping(request: GenerateRequest) -> list[int]:
    """The second prompt's answer goes round in circles."""
    return [1, 2] * 30 + [1] if request.seed == 2 else counting(request)


async def test_loops_of_chat_are_left_out_and_counted() -> None:
    stack = SpeculatingStack(looping)
    (result,) = await measured(stack, sets="chat", max_pairs=1)

    assert (1, 2) == (row_of(result)["looped"], result.num_prompts)
    assert {1, 3} == {seed for seed, _ in asked(stack)[3:]}


async def test_loops_of_other_sets_are_counted_and_stay() -> None:
    stack = SpeculatingStack(looping)
    (result,) = await measured(stack, max_pairs=1)

    assert (1, 3) == (row_of(result)["looped"], result.num_prompts)
    assert {1, 2, 3} == {seed for seed, _ in asked(stack)[3:]}


async def test_a_set_of_nothing_but_loops_has_no_figures() -> None:
    with pytest.raises(OnlyLoopsError, match=r"chat, temperature 0: all 3 outputs loop"):
        await measured(SpeculatingStack(lambda _: [7] * NUM_TOKENS), sets="chat")


async def test_progress_names_the_cell_and_what_is_known() -> None:
    said: list[str] = []
    await measured(SpeculatingStack(), said.append, max_pairs=1)

    last = "code, ngram, batch 1, temperature 0: 2.143 (2.143 to 2.143) after 1 of at most 1 pairs"
    assert last == said[-1]
