"""Who may step together: what workers have died of steps alone. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Gives a step in turn to all that may share one, and to each that may not."""

    def __init__(self) -> None:
        self._number = 0

    def next(self, able: Sequence[T], is_alone: Callable[[T], bool]) -> Sequence[T]:
        """Return who has the next step."""
        lone = [each for each in able if is_alone(each)]
        if not lone:
            return able
        others = [each for each in able if not is_alone(each)]
        groups = [*([others] if others else []), *([each] for each in lone)]
        self._number += 1
        return groups[self._number % len(groups)]
