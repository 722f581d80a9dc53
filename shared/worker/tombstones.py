"""Attempts that were cancelled before their job arrived."""

from collections import OrderedDict

from slipstream.shared.worker.report_book import Attempt


class Tombstones:
    """Remember cancelled attempts for a while; a job that comes after its cancel is refused."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        # In the order of their ends, since all are kept equally long.
        self._until: OrderedDict[Attempt, float] = OrderedDict()

    def add(self, attempt: Attempt, now: float) -> None:
        """Set a tombstone, and drop the old ones: the table is bounded by the rate of cancels."""
        self._until[attempt] = now + self._keep_s
        self._until.move_to_end(attempt)
        while next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)

    def has(self, attempt: Attempt, now: float) -> bool:
        """Tell whether an attempt was cancelled lately."""
        return self._until.get(attempt, now) > now
