"""Keep a trouble that lasts from filling the log."""

import time
from collections.abc import Hashable

_LOG_EVERY_S = 10.0
_MAX_NUM_KEYS = 256


class Rarely:
    """Lets a line through once in a while, and counts what it held back."""

    def __init__(self, every_s: float = _LOG_EVERY_S) -> None:
        self._every_s = every_s
        self._seen: dict[
            Hashable, tuple[float, int]
        ] = {}  # when it was told, and how often not since

    def is_due(self, key: Hashable, now: float | None = None) -> int | None:
        """Return how many lines of this kind were held back before this one; None to hold it."""
        now = time.monotonic() if now is None else now
        told_at, num_held = self._seen.get(key, (float("-inf"), 0))
        if now - told_at < self._every_s:
            self._seen[key] = (told_at, num_held + 1)
            return None
        if len(self._seen) >= _MAX_NUM_KEYS:
            self._seen.clear()
        self._seen[key] = (now, 0)
        return num_held

    def forget(self) -> None:
        """Let the next line of each kind through: the trouble is over."""
        self._seen.clear()
