"""Urgent prompts have steps of their own, and nobody is left out for ever."""

import pytest

from slipstream.shared.scheduling.classes import CLASSES
from slipstream.shared.worker.step_cost import StepCost
from slipstream.shared.worker.urgency import PromptTurns, Urgency

BATCH, STANDARD, INTERACTIVE = (
    CLASSES[name].job_priority for name in ("batch", "standard", "interactive")
)


def same(priority: int) -> int:
    return priority


def test_urgent_prompts_and_all_prompts_take_turns() -> None:
    urgency = Urgency()
    prompts = [INTERACTIVE, BATCH, INTERACTIVE + 100, STANDARD - 100]
    steps = [urgency.choose(prompts, same, 0.0) for _ in range(4)]

    assert [[INTERACTIVE, INTERACTIVE + 100], prompts] * 2 == steps


def test_the_priority_of_a_request_is_no_class() -> None:
    prompts = [STANDARD + 100, STANDARD, STANDARD - 100]

    assert [prompts] * 3 == [Urgency().choose(prompts, same, 0.0) for _ in range(3)]


def test_who_is_urgent_first_comes_first_after_a_step_of_all() -> None:
    urgency = Urgency()
    urgency.choose([INTERACTIVE, BATCH], same, 0.0)
    assert [BATCH] == urgency.choose([BATCH], same, 0.0)
    assert [INTERACTIVE] == urgency.choose([INTERACTIVE, BATCH], same, 0.0)
    assert [] == urgency.choose([], same, 0.0)


def test_urgent_prompts_beside_others_are_expected_again_for_a_while() -> None:
    urgency = Urgency()
    urgency.choose([INTERACTIVE], same, 5.0)
    assert not urgency.is_expected(5.0), "alone they wait for nobody"
    urgency.choose([INTERACTIVE, BATCH], same, 10.0)

    assert urgency.is_expected(60.0)
    assert not urgency.is_expected(71.0)


def test_turns_go_by_priority_and_are_shorter_while_urgent_prompts_are_expected() -> None:
    turns = PromptTurns(512, 0.1, StepCost())
    brief_s = 0.1 * 0.8
    prompts = [(BATCH, 0), (INTERACTIVE, 1), (BATCH + 1, 2), (INTERACTIVE, 3)]
    by_priority = [(INTERACTIVE, 1), (INTERACTIVE, 3), (BATCH + 1, 2), (BATCH, 0)]

    def next_step(now: float, of: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], float]:
        chosen, budget = turns.next(of, lambda each: each[0], now)
        assert budget.max_num_rows == 512
        assert budget.time is not None
        return chosen, budget.time.seconds

    assert (prompts[:1], 0.1) == next_step(0.0, prompts[:1])
    assert (by_priority[:2], pytest.approx(brief_s)) == next_step(1.0, prompts)
    assert (by_priority, pytest.approx(brief_s)) == next_step(2.0, prompts)
    assert (prompts[:1], pytest.approx(brief_s)) == next_step(60.0, prompts[:1])
    assert (prompts[:1], 0.1) == next_step(62.0, prompts[:1])
