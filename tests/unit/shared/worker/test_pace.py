"""A step with prompts takes a bounded multiple of what its streams alone would take."""

from statistics import median

import pytest

from slipstream.shared.worker.chunks import Waiting, share
from slipstream.shared.worker.pace import Pace
from slipstream.shared.worker.step_cost import NO_STREAMS, Prompts, Streams

STREAM_S, PROMPT_ROW_S = 0.01, 0.0001
NO_PROMPTS = Prompts(0, 0)


def streams(number: int, context: int = 100) -> Streams:
    return Streams(number, number * context)


def prompt(num_rows: int) -> Prompts:
    return Prompts(num_rows, num_rows * num_rows / 2)


def test_prompts_beside_streams_keep_within_the_stretch() -> None:
    pace, running = Pace(512, 2.5, 0.1), streams(16)
    for _ in range(100):
        pace.saw(running, NO_PROMPTS, STREAM_S)
    worst = 0.0
    for _ in range(200):
        budget = pace.budget(running)
        if budget is None:
            pace.saw(running, NO_PROMPTS, STREAM_S)
            continue
        assert budget.time is not None
        num_rows = budget.time.cost.max_num_rows(budget.time.seconds, 0, is_first_alone=False)
        worst = STREAM_S + max(num_rows, 1) * PROMPT_ROW_S
        pace.saw(running, prompt(max(num_rows, 1)), worst)

    assert 0.9 * 2.5 * STREAM_S < worst < 1.05 * 2.5 * STREAM_S


def test_streams_step_alone_now_and_then_though_prompts_wait() -> None:
    pace, running = Pace(512, 2.5, 0.1), streams(1)
    for _ in range(10):
        pace.saw(running, NO_PROMPTS, STREAM_S)
    alone = 0
    for _ in range(330):
        if pace.budget(running) is None:
            alone += 1
            pace.saw(running, NO_PROMPTS, STREAM_S)
        else:
            pace.saw(running, prompt(16), 2 * STREAM_S)

    assert 10 == alone


@pytest.mark.parametrize("factor", [0.3, 1.0, 5.0])
def test_prompts_get_their_share_soon_on_any_machine(factor: float) -> None:
    """
    From the first step on prompts wait, so that streams hardly ever step alone.

    A step of theirs that is thought to be shorter than it is would leave prompts a tile a step,
    and be paid for by what a row of them seems to cost: for ever.
    """
    pace, running = Pace(512, 2.3, 0.1), streams(16, 540)
    rows: list[int] = []
    for _ in range(100):
        budget = pace.budget(running)
        if budget is None:
            pace.saw(running, NO_PROMPTS, factor * STREAM_S)
            continue
        num_rows = share([Waiting(0, 4096)], budget)[0]
        rows.append(num_rows)
        pace.saw(running, prompt(num_rows), factor * (STREAM_S + num_rows * PROMPT_ROW_S))
    fitting = 1.3 * STREAM_S / PROMPT_ROW_S

    assert 0.7 * fitting < rows[-1] < 1.2 * fitting
    assert median(rows[20:40]) > 0.6 * fitting, "and not only in the end"


def test_streams_that_take_longer_than_foreseen_are_looked_at_again_soon() -> None:
    pace, running = Pace(512, 2.5, 0.1), streams(1)
    for _ in range(10):
        pace.saw(running, NO_PROMPTS, STREAM_S)
    pace.saw(running, NO_PROMPTS, 2 * STREAM_S)
    for _ in range(2):
        assert pace.budget(running) is not None
        pace.saw(running, prompt(16), 3 * STREAM_S)

    assert pace.budget(running) is None


def test_without_streams_a_newcomer_waits_so_long_at_most() -> None:
    budget = Pace(512, 2.5, 0.1).budget(NO_STREAMS)

    assert budget is not None
    assert budget.time is not None
    assert (512, 0.1, True) == (budget.max_num_rows, budget.time.seconds, budget.is_alone)
