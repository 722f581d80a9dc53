"""
What each tenant has been served: virtual token counters. Pure.

Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), algorithm 2: of the tenants
that wait the one goes next that got the fewest tokens; who comes back after a pause starts level
with those that stayed, so that nobody saves up a claim.
"""

import heapq
from collections.abc import Collection, Mapping

_MIN_KEPT = 1024
_MAX_NUM_IDLE = 4096  # counters kept of those that have nothing waiting


class TenantCounters:
    """
    Owns the counters, which only grow while they are kept.

    Who has none counts as served up to the floor. An order that knows what a tenant had before it
    was forgotten looks again when that comes up: it is never worse off than with its counter.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = weights or {}
        self._counters: dict[str, float] = {}
        self._floor = 0.0  # where those that wait were at the last look
        self._last_tenant = ""  # whose turn it was last
        self._sweep_at = _MIN_KEPT  # counters, from which on it's worth looking at all of them

    def __len__(self) -> int:
        return len(self._counters)

    def of(self, tenant: str) -> float:
        """Return what a tenant was served, in tokens for each unit of its weight."""
        return self._counters.get(tenant, self._floor)

    def began_to_wait(self, tenant: str, least: float | None) -> None:
        """
        Lift a tenant that had nothing waiting to where the others are.

        `least` is the least counter of those that wait; without any it is that of whose turn it was
        last.
        """
        level = self.of(self._last_tenant) if least is None else least
        self._floor = max(self._floor, level)
        self._counters[tenant] = max(self.of(tenant), self._floor)

    def chosen(self, tenant: str) -> None:
        """Note that it is a tenant's turn."""
        self._last_tenant = tenant

    def charge(self, tenant: str, num_tokens: float) -> None:
        """Count tokens that a tenant was served, or is about to be."""
        assert num_tokens >= 0, "what was served can't be taken back"
        self._counters[tenant] = self.of(tenant) + num_tokens / self._weights.get(tenant, 1.0)

    def forget_idle(self, waiting: Collection[str]) -> None:
        """
        Drop the counters that say nothing any more, if there are many: memory is bounded.

        All are looked at only when they have doubled since they were last, so that each costs
        the same however many there are. Of idle ones that still say something too many may be left:
        then those nearest to the floor go, whose owners get the least by it.
        """
        if len(self._counters) <= self._sweep_at:
            return
        needed = {*waiting, self._last_tenant} & self._counters.keys()
        kept = {tenant: self._counters[tenant] for tenant in needed}
        idle = (
            (counter, tenant)
            for tenant, counter in self._counters.items()
            if counter > self._floor and tenant not in kept
        )
        kept.update((name, counter) for counter, name in heapq.nlargest(_MAX_NUM_IDLE, idle))
        self._counters = kept
        self._sweep_at = max(_MIN_KEPT, 2 * len(kept))
