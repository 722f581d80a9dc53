"""Waiting requests of several tenants: the one that got the least is next. Pure."""

import heapq

from slipstream.shared.scheduling.key_order import Key, KeyOrder
from slipstream.shared.scheduling.tenants import TenantCounters
from slipstream.shared.scheduling.waiting import WaitingRequest


class FairOrder:
    """
    Tenants by their counters, each with an order of its own.

    The counters may be shared with other orders, and only grow: the heap holds what they were when
    a tenant was pushed, and one that has moved finds its place when it comes up.
    """

    def __init__(self, key: Key, counters: TenantCounters) -> None:
        self._key = key
        self._counters = counters
        self._orders: dict[str, KeyOrder] = {}
        self._heap: list[tuple[float, str]] = []
        self._pushed: set[str] = set()  # tenants in the heap, once each
        self._num_waiting = 0
        self.work_s = 0.0  # of all that wait

    def __len__(self) -> int:
        return self._num_waiting

    def work_s_of(self, tenant: str) -> float:
        """Return the work of a tenant that waits."""
        order = self._orders.get(tenant)
        return order.work_s if order is not None else 0.0

    def add(self, request: WaitingRequest, *, is_first: bool = False) -> None:
        """Let a request wait."""
        order = self._orders.get(request.tenant)
        if order is None:
            order = self._orders[request.tenant] = KeyOrder(self._key)
            self._push(request.tenant)
        order.add(request, is_first=is_first)
        self._num_waiting += 1
        self.work_s += request.work_s

    def first(self) -> WaitingRequest | None:
        """Return the next request without taking it."""
        tenant = self._next_tenant()
        return self._orders[tenant].first() if tenant is not None else None

    def least(self) -> float | None:
        """Return the least counter of those that wait."""
        tenant = self._next_tenant()
        return self._counters.of(tenant) if tenant is not None else None

    def remove(self, request: WaitingRequest) -> None:
        """Take a request out, whatever its place."""
        order = self._orders[request.tenant]
        order.remove(request)
        self._num_waiting -= 1
        self.work_s = self.work_s - request.work_s if self._num_waiting else 0.0
        if not order:
            del self._orders[request.tenant]

    def _next_tenant(self) -> str | None:
        while self._heap:
            counter, tenant = self._heap[0]
            if tenant not in self._orders:
                heapq.heappop(self._heap)
                self._pushed.discard(tenant)
            elif counter != self._counters.of(tenant):
                heapq.heapreplace(self._heap, (self._counters.of(tenant), tenant))
            else:
                return tenant
        return None

    def _push(self, tenant: str) -> None:
        if tenant not in self._pushed:
            self._pushed.add(tenant)
            heapq.heappush(self._heap, (self._counters.of(tenant), tenant))
