"""Attempts that were cancelled before their job arrived."""

from slipstream.shared.worker.report_book import Attempt


class Tombstones:
    """Remember cancelled attempts for a while; a job that comes after its cancel is refused."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._until: dict[Attempt, float] = {}

    def add(self, attempt: Attempt, now: float) -> None:
        """Set a tombstone, and drop the old ones: the table is bounded by the rate of cancels."""
        self._until = {each: until for each, until in self._until.items() if until > now}
        self._until[attempt] = now + self._keep_s

    def has(self, attempt: Attempt, now: float) -> bool:
        """Tell whether an attempt was cancelled lately."""
        return self._until.get(attempt, now) > now
