"""Requests that wait for a worker: classes, and in each the order of the policy. Pure."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, get_args

from slipstream.shared.ids import RequestId
from slipstream.shared.scheduling.classes import CLASSES, LatencyClass
from slipstream.shared.scheduling.fair_order import FairOrder
from slipstream.shared.scheduling.key_order import KEYS, KeyOrder
from slipstream.shared.scheduling.tenants import TenantCounters
from slipstream.shared.scheduling.waiting import WaitingRequest

Policy = Literal["fcfs", "priority", "sjf", "deadline", "fair"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

# While lower classes have waited too long, every so many-th placement is theirs.
AGED_EVERY = 8


class _Lane:
    """The requests of one class."""

    def __init__(self, of_class: LatencyClass, order: KeyOrder | FairOrder) -> None:
        self.of_class = of_class
        self.order = order
        self.requests: dict[RequestId, WaitingRequest] = {}
        self.by_length = KeyOrder(lambda request: request.num_uncached_tokens)
        self._arrivals: deque[WaitingRequest] = deque()  # those that left are passed over

    def add(self, request: WaitingRequest, *, is_first: bool) -> None:
        self.requests[request.request_id] = request
        self.order.add(request, is_first=is_first)
        self.by_length.add(request)
        (self._arrivals.appendleft if is_first else self._arrivals.append)(request)
        if len(self._arrivals) > 2 * len(self.requests) + 64:
            self._arrivals = deque(filter(self._is_here, self._arrivals))

    def remove(self, request: WaitingRequest) -> None:
        del self.requests[request.request_id]
        self.order.remove(request)
        self.by_length.remove(request)

    def oldest(self) -> WaitingRequest | None:
        """Return the one that came first, whatever the order."""
        while self._arrivals and not self._is_here(self._arrivals[0]):
            self._arrivals.popleft()
        return self._arrivals[0] if self._arrivals else None

    def aged(self, now: float) -> WaitingRequest | None:
        """Return the oldest if it has waited too long."""
        oldest = self.oldest()
        if oldest is None or now - oldest.arrived_at < self.of_class.aging_s:
            return None
        return oldest

    def _is_here(self, request: WaitingRequest) -> bool:
        return self.requests.get(request.request_id) is request


class WaitingQueue:
    """
    Bounded by count and bytes; ordered by class, then by policy. `fcfs` knows no classes.

    The class of the lowest rank goes first. Lower ones don't starve: while one of theirs has waited
    for its class's `aging_s`, the oldest of them gets every `AGED_EVERY`-th turn.
    """

    def __init__(
        self,
        max_num_requests: int,
        max_num_bytes: int,
        policy: Policy = "priority",
        tenant_weights: Mapping[str, float] | None = None,
    ) -> None:
        self.max_num_requests = max_num_requests
        self.max_num_bytes = max_num_bytes
        self.policy = policy
        self.counters = TenantCounters(tenant_weights)
        self.num_bytes = 0
        self._lanes = self._make_lanes(policy)
        self._requests: dict[RequestId, _Lane] = {}
        self._tenants: Counter[str] = Counter()
        self._num_since_aged = 0

    def __len__(self) -> int:
        return len(self._requests)

    def can_add(self, num_bytes: int, num_requests: int = 1) -> bool:
        """Tell whether so many more requests of so many bytes in all may wait."""
        return (
            len(self) + num_requests <= self.max_num_requests
            and self.num_bytes + num_bytes <= self.max_num_bytes
        )

    def add(self, request: WaitingRequest, *, is_first: bool = False) -> None:
        """Let a request wait; `is_first` puts one back that was taken and could not be placed."""
        if request.request_id in self._requests:
            return
        if not self._tenants[request.tenant]:
            least = [
                each.order.least() for each in self._lanes if isinstance(each.order, FairOrder)
            ]
            known = [each for each in least if each is not None]
            self.counters.began_to_wait(request.tenant, min(known, default=None))
        lane = self._lane_of(request)
        self._requests[request.request_id] = lane
        self._tenants[request.tenant] += 1
        self.num_bytes += request.num_bytes
        lane.add(request, is_first=is_first)
        self.counters.forget_idle(self._tenants.keys())

    def first(self, now: float, max_rank: int | None = None) -> WaitingRequest | None:
        """Return the next request without taking it, of ranks up to `max_rank` only."""
        lanes = self._waiting_lanes(max_rank)
        best = next(lanes, None)
        if best is None:
            return None
        if self._num_since_aged >= AGED_EVERY - 1:
            aged = next(filter(None, (lane.aged(now) for lane in lanes)), None)
            if aged is not None:
                return aged
        return best.order.first()

    def shortest(self) -> WaitingRequest | None:
        """Return the one with the shortest prompt, of the first class that has any."""
        lane = next(self._waiting_lanes(None), None)
        return lane.by_length.first() if lane is not None else None

    def take(self, request: WaitingRequest, now: float) -> None:
        """Take a request out because it is placed: its tenant is charged for the prompt."""
        lane = self._requests[request.request_id]
        others = self._waiting_lanes(lane.of_class.rank - 1)
        is_passing = next(others, None) is not None  # its turn came before that of better ranks
        has_passed = any(
            each.aged(now) for each in self._lanes if each.of_class.rank > lane.of_class.rank
        )
        if is_passing:
            self._num_since_aged = 0
        elif has_passed:
            self._num_since_aged += 1
        self.counters.chosen(request.tenant)
        self.counters.charge(request.tenant, request.num_prompt_tokens)
        self.remove(request.request_id)

    def remove(self, request_id: RequestId) -> WaitingRequest | None:
        """Take a request out, whatever its place."""
        lane = self._requests.pop(request_id, None)
        if lane is None:
            return None
        request = lane.requests[request_id]
        lane.remove(request)
        self.num_bytes -= request.num_bytes
        self._tenants[request.tenant] -= 1
        if not self._tenants[request.tenant]:
            del self._tenants[request.tenant]
        return request

    def has(self, request_id: RequestId) -> bool:
        """Tell whether a request waits."""
        return request_id in self._requests

    def requests(self) -> list[WaitingRequest]:
        """Return all that wait, in no order."""
        return [request for lane in self._lanes for request in lane.requests.values()]

    def oldest(self) -> Iterable[WaitingRequest]:
        """Yield the request of each class that has waited longest."""
        return filter(None, (lane.oldest() for lane in self._lanes))

    def work_ahead_s(self, request: WaitingRequest) -> float:
        """
        Return the seconds of work that go before a request that would be added now.

        All of its class counts and of better ones; between tenants at most as much of each as its
        own has waiting.
        """
        lane = self._lane_of(request)
        better = [each for each in self._lanes if each.of_class.rank < lane.of_class.rank]
        work_s = sum(each.order.work_s for each in better) + lane.order.work_s
        if isinstance(lane.order, FairOrder):
            own_s = lane.order.work_s_of(request.tenant)
            num_tenants = len(self._tenants.keys() | {request.tenant})
            work_s = min(work_s, (own_s + request.work_s) * num_tenants)
        return work_s

    def _waiting_lanes(self, max_rank: int | None) -> Iterator[_Lane]:
        return (
            lane
            for lane in self._lanes
            if lane.requests and (max_rank is None or lane.of_class.rank <= max_rank)
        )

    def _lane_of(self, request: WaitingRequest) -> _Lane:
        return self._lanes[0] if len(self._lanes) == 1 else self._lanes[request.of_class.rank]

    def _make_lanes(self, policy: Policy) -> list[_Lane]:
        if policy == "fcfs":
            return [_Lane(CLASSES["standard"], KeyOrder(KEYS["fcfs"]))]
        classes = sorted(CLASSES.values(), key=lambda each: each.rank)
        return [_Lane(each, self._make_order(policy)) for each in classes]

    def _make_order(self, policy: Policy) -> KeyOrder | FairOrder:
        if policy == "fair":
            return FairOrder(KEYS["priority"], self.counters)
        return KeyOrder(KEYS[policy])
