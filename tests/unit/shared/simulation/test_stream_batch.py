"""The closed sum over many steps is that of the steps one by one, and its inverse fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.ids import RequestId
from slipstream.shared.simulation.costs import Costs, Delays, StepTimes
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.stream_batch import StreamBatch

DELAYS = Delays(step_gap_s=3e-4, row_gap_s=2e-5)


def costs_of(context_s: float) -> Costs:
    steps = StepTimes(
        step_s=5e-3,
        stream_row_s=2e-4,
        stream_context_s=context_s,
        prompt_step_s=0.0,
        prompt_row_s=0.0,
    )
    return Costs(steps=steps, delays=DELAYS)


def batch_of(costs: Costs, lengths: list[tuple[int, int]]) -> StreamBatch:
    batch = StreamBatch(costs)
    for number, (prompt, output) in enumerate(lengths):
        batch.add(
            SimulatedRequest(
                request_id=RequestId(str(number)),
                arrived_at=0.0,
                num_prompt_tokens=prompt,
                num_output_tokens=output,
                max_tokens=output,
            )
        )
    return batch


LENGTHS = st.lists(st.tuples(st.integers(1, 3000), st.integers(2, 400)), min_size=1, max_size=32)
CONTEXT = st.sampled_from([0.0, 4e-8, 1e-6])


@given(LENGTHS, CONTEXT)
def test_many_steps_take_as_long_as_each_of_them(
    lengths: list[tuple[int, int]], context_s: float
) -> None:
    """Every stream attends to its prompt and to what it said, the newest token with it."""
    costs = costs_of(context_s)
    batch = batch_of(costs, lengths)
    num_steps = batch.num_steps_left
    at_once = batch.seconds(num_steps)
    one_by_one = 0.0
    for step in range(num_steps):
        context = sum(prompt + 1 + step for prompt, _ in lengths)
        assert (len(lengths), context) == batch.shape
        gap_s = DELAYS.step_gap_s + DELAYS.row_gap_s * len(lengths)
        one_by_one += costs.steps.of_streams(batch.shape) + gap_s
        ended = batch.step(1)

    shortest = min(output for _, output in lengths)
    assert one_by_one == pytest.approx(at_once, rel=1e-9)
    assert shortest - 1 == num_steps
    assert sum(output == shortest for _, output in lengths) == len(ended)
    assert (
        sum(p + o for p, o in lengths if o > shortest)
        - sum(o - shortest for _, o in lengths if o > shortest)
        == batch.shape.num_context_tokens
    )


@given(LENGTHS, CONTEXT, st.floats(0.0, 20.0))
def test_so_many_steps_are_the_fewest_that_take_a_time(
    lengths: list[tuple[int, int]], context_s: float, seconds: float
) -> None:
    batch = batch_of(costs_of(context_s), lengths)
    num_steps = batch.num_steps_by(seconds)

    assert batch.seconds(num_steps) >= seconds
    assert num_steps == 1 or batch.seconds(num_steps - 1) < seconds
