"""Rows of a step, and what a step with drafts leaves behind, on the fake engine."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.services.decode.batch import Budget, apply, max_num_drafts, plan, sample
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.errors import NonFiniteLogitsError
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.fake_runner import FakeRunner, next_token_id
from slipstream.shared.worker.chunks import PromptBudget

from .decode_samples import make_job, make_sequence

LAYOUT = KvLayout(1, 1, 2, kind="fake")
PROMPT = list(b"Ride behind me")


def make_runner(num_blocks: int = 8) -> FakeRunner:
    return FakeRunner(memoryview(bytearray(num_blocks * LAYOUT.block_bytes)), LAYOUT, num_blocks)


def continuation(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    said = list(token_ids)
    for _ in range(num_tokens):
        said.append(next_token_id(said))
    return said[len(token_ids) :]


def rows_alone(num_rows: int) -> Budget:
    """A budget of rows, whatever they take."""
    return lambda streams: PromptBudget(
        max(num_rows - streams.num_rows, 1), is_alone=not streams.num_rows
    )


def step(
    runner: FakeRunner,
    sequences: list[DecodeSequence],
    drafts: list[list[int]] | None = None,
    budget: int = 512,
) -> None:
    """Do what a step does; the engine checks every slot that it reads."""
    proposals = dict(zip((each.attempt for each in sequences), drafts or [], strict=False))
    parts = plan(sequences, proposals, rows_alone(budget), LAYOUT.block_size)
    sample(parts, runner.forward([part.rows for part in parts]))
    for part in parts:
        apply(part)


def ready(prompt: list[int], table: list[int], request: str = "r") -> DecodeSequence:
    sequence = make_sequence(prompt, request=request, max_tokens=1000)
    sequence.block_ids = table
    return sequence


@given(st.lists(st.lists(st.booleans(), max_size=4), min_size=1, max_size=8))
def test_tokens_with_drafts_are_those_without(steps: list[list[bool]]) -> None:
    """
    Each list says which drafts of a step are right; what follows a wrong one is never used.

    The engine finds a KV position that was taken for valid and isn't.
    """
    runner = make_runner()
    sequence = ready(PROMPT, [1, 2, 3])
    step(runner, [sequence])
    for rights in steps:
        expected = continuation(sequence.token_ids, len(rights) + 1)
        draft = [
            token_id if is_right else (token_id + 1) % 256
            for token_id, is_right in zip(expected, rights, strict=False)
        ]
        num_before = len(sequence.token_ids)
        step(runner, [sequence], [draft])
        num_right = next((i for i, is_right in enumerate(rights) if not is_right), len(rights))

        assert expected[: num_right + 1] == sequence.token_ids[num_before:]
        assert len(sequence.token_ids) - 1 == sequence.num_computed_tokens


def test_prompt_chunks_and_streams_share_a_step() -> None:
    """Running streams always have their row; prompts share what the budget leaves."""
    running = ready(PROMPT, [1], "a")
    runner = make_runner()
    step(runner, [running])
    first, second = ready(list(range(40)), [2, 3], "b"), ready(PROMPT, [4], "c")
    for _ in range(4):
        step(runner, [running, first, second], budget=16)

    assert continuation(PROMPT, 5) == running.token_ids[len(PROMPT) :]
    assert continuation(PROMPT, 3) == second.token_ids[len(PROMPT) :]
    assert continuation(range(40), 1) == first.token_ids[40:]
    assert (4, 2) == (first.num_chunks, second.num_chunks)


def test_a_prompt_always_gets_a_row_however_many_streams_run() -> None:
    running, prompt = ready(PROMPT, [1], "a"), ready(PROMPT, [2], "b")
    running.num_computed_tokens = len(PROMPT) - 1
    parts = plan([running, prompt], {}, rows_alone(1), LAYOUT.block_size)

    assert [1, 1] == [part.rows.num_rows for part in parts]


def test_drafts_shrink_to_the_slots_that_are_there() -> None:
    sequence = ready(list(range(30)), [1])
    sequence.num_computed_tokens = 29
    (part,) = plan([sequence], {sequence.attempt: [1, 2, 3, 4]}, rows_alone(512), LAYOUT.block_size)

    assert [1, 2] == list(part.draft_token_ids)
    assert (3, 3) == (part.rows.num_rows, part.rows.num_logit_rows)


def test_nothing_is_said_behind_the_ending() -> None:
    sequence = make_sequence(PROMPT, max_tokens=2)
    sequence.block_ids = [1]
    runner = make_runner()
    step(runner, [sequence])
    expected = continuation(sequence.token_ids, 3)
    step(runner, [sequence], [expected[:2]])

    assert 2 == len(sequence.log.token_ids)
    assert sequence.ending is not None


def test_drafts_are_asked_for_only_while_they_can_be_of_use() -> None:
    assert 4 == max_num_drafts(make_sequence(PROMPT, max_tokens=100), 4)
    assert 2 == max_num_drafts(make_sequence(PROMPT, num_speculative_tokens=2), 4)
    assert 0 == max_num_drafts(make_sequence(PROMPT, num_speculative_tokens=0), 4)
    assert 0 == max_num_drafts(make_sequence(PROMPT, max_tokens=1), 4)
    assert 2 == max_num_drafts(make_sequence(PROMPT, max_tokens=3), 4)
    near_the_end = make_sequence(PROMPT, max_tokens=100)
    near_the_end.max_num_tokens = len(PROMPT) + 2
    assert 1 == max_num_drafts(near_the_end, 4)


def test_what_follows_a_rejected_draft_was_not_tested() -> None:
    counts = make_sequence(PROMPT).drafts
    counts.count(4, 1)
    counts.count(3, 0)

    assert (7, 3, 1) == (counts.num_drafted, counts.num_tested, counts.num_accepted)
    assert 2 == counts.num_steps


def test_a_part_without_logits_samples_nothing() -> None:
    sequence = ready(list(range(40)), [1, 2])
    (part,) = plan([sequence], {}, rows_alone(8), LAYOUT.block_size)
    sample([part], np.empty((0, 259), np.float32))
    apply(part)

    assert (8, 1, 40) == (
        sequence.num_computed_tokens,
        sequence.num_chunks,
        len(sequence.token_ids),
    )


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_bad_row_is_one_bad_request(broken: int) -> None:
    """The others have their tokens, those behind it too."""
    runner = make_runner()
    sequences = [ready(PROMPT, [1 + 2 * i, 2 + 2 * i], request=f"r{i}") for i in range(3)]
    parts = plan(sequences, {}, rows_alone(512), LAYOUT.block_size)
    logits = runner.forward([part.rows for part in parts])
    expected = logits.argmax(axis=1).tolist()
    logits[broken, 7] = np.nan
    sample(parts, logits)
    failed = parts.pop(broken)
    expected.pop(broken)

    assert isinstance(failed.error, NonFiniteLogitsError)
    assert not failed.sampled
    assert expected == [part.sampled[0].token_id for part in parts]
    assert [None, None] == [part.error for part in parts]


@pytest.mark.parametrize("budget", [3, 7, 14, 16, 512])
def test_a_prompt_is_scored_once_and_what_was_said_already_never(budget: int) -> None:
    """An attempt that goes on behind another's output computes both, maybe in one chunk."""
    runner = make_runner()
    said = continuation(PROMPT, 5)
    job = make_job(PROMPT, output=said, num_prompt_logprobs=1, max_tokens=100)
    sequence = make_sequence(PROMPT, job)
    sequence.token_ids += said
    sequence.block_ids = [1, 2]
    while not sequence.log.token_ids:
        step(runner, [sequence], budget=budget)

    assert PROMPT[1:] == [each.token_id for each in sequence.prompt_logprobs]
    assert continuation(PROMPT, 6)[5:] == sequence.log.token_ids
