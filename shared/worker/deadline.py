"""The remaining time of a request, on this process's own clock."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock; None means no limit."""

    at: float | None

    @classmethod
    def from_ms(cls, remaining_ms: int | None) -> "Deadline":
        """Start counting what the sender said remains."""
        return cls(None if remaining_ms is None else time.monotonic() + remaining_ms / 1000)

    @property
    def remaining_ms(self) -> int | None:
        """What to tell the next one; never negative."""
        return None if self.at is None else max(0, int((self.at - time.monotonic()) * 1000))

    @property
    def is_over(self) -> bool:
        """The time is up."""
        return self.at is not None and time.monotonic() >= self.at

    def left_s(self, at_most: float) -> float:
        """Return the seconds left, bounded."""
        return at_most if self.at is None else min(at_most, max(0.0, self.at - time.monotonic()))
