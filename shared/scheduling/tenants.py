"""
What each tenant has been served: virtual token counters. Pure.

Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), algorithm 2: of the tenants
that wait the one goes next that got the fewest tokens; who comes back after a pause starts level
with those that stayed, so that nobody saves up a claim.
"""

from collections.abc import Collection, Mapping

_MIN_KEPT = 1024


class TenantCounters:
    """Owns the counters, which only grow. Who has none counts as served up to the floor."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = weights or {}
        self._counters: dict[str, float] = {}
        self._floor = 0.0  # where those that wait were at the last look
        self._last_tenant = ""  # whose turn it was last

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
        """Drop the counters that say nothing any more, if there are many: memory is bounded."""
        if len(self._counters) <= 2 * len(waiting) + _MIN_KEPT:
            return
        self._counters = {
            tenant: counter
            for tenant, counter in self._counters.items()
            if tenant in waiting or counter > self._floor
        }
