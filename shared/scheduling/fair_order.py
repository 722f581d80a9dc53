"""Waiting requests of several tenants: the one that got the least is next. Pure."""

import heapq

from slipstream.shared.scheduling.key_order import Key, KeyOrder, length
from slipstream.shared.scheduling.tenants import TenantCounters
from slipstream.shared.scheduling.waiting import WaitingRequest

_MIN_COMPACTED = 64


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
        self._by_length: dict[str, KeyOrder] = {}
        self._heap: list[tuple[float, str]] = []
        self._pushed: set[str] = set()  # tenants in the heap, once each
        self._num_waiting = 0
        self.work_s = 0.0  # of all that wait

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, request: WaitingRequest, *, is_first: bool = False) -> None:
        """Let a request wait."""
        order = self._orders.get(request.tenant)
        if order is None:
            order = self._orders[request.tenant] = KeyOrder(self._key)
            self._by_length[request.tenant] = KeyOrder(length)
            self._push(request.tenant)
        order.add(request, is_first=is_first)
        self._by_length[request.tenant].add(request)
        self._num_waiting += 1
        self.work_s += request.work_s

    def first(self) -> WaitingRequest | None:
        """Return the next request without taking it."""
        tenant = self._next_tenant()
        return self._orders[tenant].first() if tenant is not None else None

    def shortest(self) -> WaitingRequest | None:
        """Return the request with the shortest prompt of the tenant whose turn it is."""
        tenant = self._next_tenant()
        return self._by_length[tenant].first() if tenant is not None else None

    def work_before_s(self, request: WaitingRequest) -> float:
        """Return the work of those that a newcomer would come after, roughly."""
        own = self._orders.get(request.tenant)
        own_s = own.work_before_s(request) if own is not None else 0.0
        num_others = len(self._orders.keys() - {request.tenant})
        others_s = self.work_s - (own.work_s if own is not None else 0.0)
        # Each of the others is served as much meanwhile, if it has as much.
        return own_s + min(others_s, (own_s + request.work_s) * num_others)

    def least(self) -> float | None:
        """Return the least counter of those that wait."""
        tenant = self._next_tenant()
        return self._counters.of(tenant) if tenant is not None else None

    def remove(self, request: WaitingRequest) -> None:
        """Take a request out, whatever its place."""
        order = self._orders[request.tenant]
        order.remove(request)
        self._by_length[request.tenant].remove(request)
        self._num_waiting -= 1
        self.work_s = self.work_s - request.work_s if self._num_waiting else 0.0
        if not order:
            del self._orders[request.tenant]
            del self._by_length[request.tenant]
            self._compact()

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

    def _compact(self) -> None:
        """Drop tenants that have left, if most have: those above them may stay for long."""
        if len(self._heap) > 2 * len(self._orders) + _MIN_COMPACTED:
            self._heap = [(self._counters.of(tenant), tenant) for tenant in self._orders]
            heapq.heapify(self._heap)
            self._pushed = set(self._orders)

    def _push(self, tenant: str) -> None:
        if tenant not in self._pushed:
            self._pushed.add(tenant)
            heapq.heappush(self._heap, (self._counters.of(tenant), tenant))
