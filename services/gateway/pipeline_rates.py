"""How fast something goes: the growth of a count over the last moments. Pure."""

from collections import deque

_WINDOW_S = 2.0


class Rate:
    """Of amounts that are added as they come."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._amounts: deque[tuple[float, float]] = deque()
        self._total = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """Count an amount."""
        if amount <= 0:
            return
        self._amounts.append((now_s, amount))
        self._total += amount
        self._forget(now_s)

    def per_s(self, now_s: float) -> float:
        """Return the amount a second of late."""
        self._forget(now_s)
        return round(self._total / self._window_s, 1)

    def _forget(self, now_s: float) -> None:
        while self._amounts and self._amounts[0][0] <= now_s - self._window_s:
            self._total -= self._amounts.popleft()[1]


class Growth:
    """Of a counter that somebody else keeps and starts again from 0."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self.per_s = 0.0

    def read(self, count: float, now_s: float) -> None:
        """Note what the counter shows."""
        if self._last is not None and now_s > self._last[1]:
            grown = count - self._last[0]
            self.per_s = round(max(0.0, grown) / (now_s - self._last[1]), 1)
        self._last = count, now_s
