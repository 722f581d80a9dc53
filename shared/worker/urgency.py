"""Which prompts a step takes while some are of a more urgent class, and how long it lasts. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from slipstream.shared.scheduling.classes import class_of_priority
from slipstream.shared.worker.chunks import PromptBudget, TimeBudget
from slipstream.shared.worker.step_cost import StepCost

PromptT = TypeVar("PromptT")

_EXPECTED_S = 60.0
_BRIEF_PART = 0.8  # of the longest step


class Urgency:
    """
    A step of the most urgent alone, then one of all, in turns.

    Filled up with others a step lasts several times as long, and the urgent wait for its end. In
    every other step all have their part, so that nobody is left out for ever.
    """

    def __init__(self) -> None:
        self._has_left_out = False
        self._urgent_at = float("-inf")

    def is_expected(self, now: float) -> bool:
        """Tell whether urgent prompts came beside others lately, and may come again."""
        return now - self._urgent_at < _EXPECTED_S

    def choose(
        self, prompts: Sequence[PromptT], priority_of: Callable[[PromptT], int], now: float
    ) -> list[PromptT]:
        """Return those that the next step may take, in their order."""
        classes = [class_of_priority(priority_of(each)) for each in prompts]
        most = max(classes, default=0)
        urgent = [each for each, name in zip(prompts, classes, strict=True) if name == most]
        if self._has_left_out or len(urgent) == len(prompts):
            self._has_left_out = False
            return list(prompts)
        self._has_left_out = True
        self._urgent_at = now
        return urgent


class PromptTurns:
    """What each step of a prefill worker takes: whose rows, how many, and within what time."""

    def __init__(self, token_budget: int, max_step_s: float, cost: StepCost) -> None:
        self._urgency = Urgency()
        self._budget = PromptBudget(token_budget, TimeBudget(max_step_s, cost))
        brief = TimeBudget(_BRIEF_PART * max_step_s, cost)
        self._brief_budget = PromptBudget(token_budget, brief)

    def next(
        self, prompts: Sequence[PromptT], priority_of: Callable[[PromptT], int], now: float
    ) -> tuple[list[PromptT], PromptBudget]:
        """Return who may have a part of the next step, in the order of the parts, and of what."""
        # The urgent first, and among equals who came first: so do steps share their rows.
        ordered = sorted(prompts, key=priority_of, reverse=True)
        chosen = self._urgency.choose(ordered, priority_of, now)
        # A step that has begun is what an urgent prompt waits for.
        is_brief = self._urgency.is_expected(now)
        return chosen, self._brief_budget if is_brief else self._budget
