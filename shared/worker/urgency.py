"""Which prompts a step takes while some are of a more urgent class. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from slipstream.shared.scheduling.classes import class_of_priority

PromptT = TypeVar("PromptT")

_EXPECTED_S = 60.0


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
