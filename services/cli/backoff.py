"""How long to wait before a child is started again: longer each time until one has lived."""

import random

FIRST_S = 0.2
LONGEST_S = 5.0
FORGIVEN_AFTER_S = 10.0
_JITTER = 0.25


class Backoff:
    """Doubles from 0.2 s to 5 s, with jitter; ten seconds of life set it back."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._next_s = FIRST_S

    def delay_after(self, lifetime_s: float) -> float:
        """Return the wait after a child that lived this long."""
        if lifetime_s >= FORGIVEN_AFTER_S:
            self._next_s = FIRST_S
        delay_s = self._next_s
        self._next_s = min(2 * delay_s, LONGEST_S)
        # Downwards only, so that the longest wait stays the longest.
        return delay_s * (1 - _JITTER * self._rng.random())
