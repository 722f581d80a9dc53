"""A step with prompts takes a bounded multiple of what its streams alone would take."""

from statistics import median

import pytest

from slipstream.services.decode.batch import Part
from slipstream.services.decode.pace import Pace
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.worker.chunks import Waiting, share

from .decode_samples import make_sequence

STREAM_S, PROMPT_ROW_S = 0.01, 0.0001


def stream(context: int = 100) -> Part:
    rows = SequenceRows([1] * context, context - 1, 1, [1], 1)
    return Part(make_sequence([1]), rows, is_stream=True)


def prompt(num_rows: int) -> Part:
    return Part(make_sequence([1]), SequenceRows([1] * num_rows, 0, num_rows, [1], 0))


def step_s(parts: list[Part]) -> float:
    num_prompt_rows = sum(part.rows.num_rows for part in parts if not part.is_stream)
    return STREAM_S + num_prompt_rows * PROMPT_ROW_S


def test_prompts_beside_streams_keep_within_the_stretch() -> None:
    pace, streams = Pace(512, 2.5, 0.1), [stream() for _ in range(16)]
    for _ in range(100):
        pace.saw(streams, STREAM_S)
    worst = 0.0
    for _ in range(200):
        budget = pace.budget(streams)
        if budget is None:
            pace.saw(streams, STREAM_S)
            continue
        assert budget.time is not None
        num_rows = budget.time.cost.max_num_rows(budget.time.seconds, 0, is_first_alone=False)
        parts = [*streams, prompt(max(num_rows, 1))]
        worst = step_s(parts)
        pace.saw(parts, worst)

    assert 0.9 * 2.5 * STREAM_S < worst < 1.05 * 2.5 * STREAM_S


def test_streams_step_alone_now_and_then_though_prompts_wait() -> None:
    pace, streams = Pace(512, 2.5, 0.1), [stream()]
    for _ in range(10):
        pace.saw(streams, STREAM_S)
    alone = 0
    for _ in range(330):
        if pace.budget(streams) is None:
            alone += 1
            pace.saw(streams, STREAM_S)
        else:
            pace.saw([*streams, prompt(16)], 2 * STREAM_S)

    assert 10 == alone


@pytest.mark.parametrize("factor", [0.3, 1.0, 5.0])
def test_prompts_get_their_share_soon_on_any_machine(factor: float) -> None:
    """
    From the first step on prompts wait, so that streams hardly ever step alone.

    A step of theirs that is thought to be shorter than it is would leave prompts a tile a step,
    and be paid for by what a row of them seems to cost: for ever.
    """
    pace, streams = Pace(512, 2.3, 0.1), [stream(540) for _ in range(16)]
    rows: list[int] = []
    for _ in range(100):
        budget = pace.budget(streams)
        if budget is None:
            pace.saw(streams, factor * STREAM_S)
            continue
        num_rows = share([Waiting(0, 4096)], budget)[0]
        rows.append(num_rows)
        pace.saw([*streams, prompt(num_rows)], factor * step_s([prompt(num_rows)]))
    fitting = 1.3 * STREAM_S / PROMPT_ROW_S

    assert 0.7 * fitting < rows[-1] < 1.2 * fitting
    assert median(rows[20:40]) > 0.6 * fitting, "and not only in the end"


def test_streams_that_take_longer_than_foreseen_are_looked_at_again_soon() -> None:
    pace, streams = Pace(512, 2.5, 0.1), [stream()]
    for _ in range(10):
        pace.saw(streams, STREAM_S)
    pace.saw(streams, 2 * STREAM_S)
    for _ in range(2):
        assert pace.budget(streams) is not None
        pace.saw([*streams, prompt(16)], 3 * STREAM_S)

    assert pace.budget(streams) is None


def test_without_streams_a_newcomer_waits_so_long_at_most() -> None:
    budget = Pace(512, 2.5, 0.1).budget([])

    assert budget is not None
    assert budget.time is not None
    assert (512, 0.1, True) == (budget.max_num_rows, budget.time.seconds, budget.is_alone)
