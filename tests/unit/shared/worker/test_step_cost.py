"""A step's time is foreseen from the steps before it, whatever the machine."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.worker.step_cost import Prompts, StepCost, Streams, num_pairs

NO_STREAMS, NO_PROMPTS = Streams(0, 0), Prompts(0, 0)


class Machine:
    """Steps that last as long as a true model says, within some noise."""

    def __init__(self, factor: float, seed: int = 0) -> None:
        self._factor = factor
        self._random = random.Random(seed)

    def seconds(self, streams: Streams, prompts: Prompts) -> float:
        seconds = 4e-3 + 1.5e-4 * streams.num_rows + 6e-7 * streams.num_context_tokens
        seconds += 1.2e-4 * prompts.num_rows + 1.4e-7 * prompts.num_pairs
        return self._factor * seconds * self._random.uniform(0.95, 1.05)


def taught(factor: float, steps: list[tuple[Streams, Prompts]]) -> StepCost:
    cost, machine = StepCost(), Machine(factor)
    for streams, prompts in steps:
        cost.learn(streams, prompts, machine.seconds(streams, prompts))
    return cost


@pytest.mark.parametrize("factor", [0.02, 0.3, 1.0, 5.0, 40.0])
def test_steps_are_foreseen_on_a_fast_machine_and_on_a_slow_one(factor: float) -> None:
    streams = [Streams(16, 16 * context) for context in range(300, 700)]
    alone = taught(factor, [(each, NO_PROMPTS) for each in streams])
    prompts = [
        Prompts(128, num_pairs(computed, 128))
        for _ in range(10)
        for computed in range(0, 4096, 128)
    ]
    mixed = taught(
        factor,
        [(each, NO_PROMPTS) for each in streams] + [(streams[-1], each) for each in prompts],
    )

    true = Machine(factor)
    assert alone.of_streams(streams[-1]) == pytest.approx(
        true.seconds(streams[-1], NO_PROMPTS), rel=0.15
    )
    whole = mixed.of_streams(streams[-1]) + mixed.of_prompts(prompts[20], is_alone=False)
    assert whole == pytest.approx(true.seconds(streams[-1], prompts[20]), rel=0.15)


def test_a_stall_of_the_machine_teaches_little() -> None:
    shape = Streams(16, 8000)
    cost = taught(1.0, [(shape, NO_PROMPTS)] * 200)
    before = cost.of_streams(shape)

    cost.learn(shape, NO_PROMPTS, 10.0)

    assert cost.of_streams(shape) < 1.2 * before


def test_prompts_teach_nothing_about_streams() -> None:
    shape = Streams(16, 8000)
    cost = taught(1.0, [(shape, NO_PROMPTS)] * 200)
    before = cost.of_streams(shape)
    for _ in range(100):
        cost.learn(shape, Prompts(512, num_pairs(3000, 512)), 3.0)

    assert before == cost.of_streams(shape)


@given(
    seconds=st.floats(1e-4, 1.0),
    num_computed=st.integers(0, 100_000),
    is_alone=st.booleans(),
    factor=st.floats(0.05, 20),
)
def test_as_many_rows_are_taken_as_fit(
    seconds: float, num_computed: int, is_alone: bool, factor: float
) -> None:
    cost = taught(factor, [(NO_STREAMS, Prompts(256, num_pairs(0, 256)))] * 30)
    num_rows = cost.max_num_rows(seconds, num_computed, is_first_alone=is_alone)

    def takes(rows: int) -> float:
        return cost.of_prompts(Prompts(rows, num_pairs(num_computed, rows)), is_alone=is_alone)

    assert num_rows == 0 or takes(num_rows) <= seconds * 1.001
    assert takes(num_rows + 1) >= seconds * 0.999
