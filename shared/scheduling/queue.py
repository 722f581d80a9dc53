"""Requests that wait for a worker: classes, and in each the order of the policy. Pure."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from slipstream.shared.ids import RequestId
from slipstream.shared.scheduling.classes import CLASSES, LatencyClass
from slipstream.shared.scheduling.fair_order import FairOrder
from slipstream.shared.scheduling.key_order import KEYS, KeyOrder, length
from slipstream.shared.scheduling.prompt_window import WINDOW_TOKENS
from slipstream.shared.scheduling.tenants import TenantCounters
from slipstream.shared.scheduling.waiting import WaitingRequest

Policy = Literal["fcfs", "priority", "sjf", "deadline", "fair"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

# While requests of worse classes have waited too long, every so many-th placement is theirs.
AGED_EVERY = 8


class Turn(NamedTuple):
    """Who may run now."""

    request: WaitingRequest
    is_aged: bool = False  # it goes before better classes


class _Lane:
    """The requests of one class."""

    def __init__(self, of_class: LatencyClass, order: KeyOrder | FairOrder) -> None:
        self.of_class = of_class
        self.order = order
        self.requests: dict[RequestId, WaitingRequest] = {}
        self.by_length = KeyOrder(length)
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

    def is_aged(self, now: float) -> bool:
        """Tell whether somebody here has waited for too long."""
        oldest = self.oldest()
        return oldest is not None and now - oldest.arrived_at >= self.of_class.aging_s

    def shortest(self, counters: TenantCounters) -> WaitingRequest | None:
        """Return the shortest prompt that may pass without taking another tenant's share."""
        shortest = self.by_length.first()
        if shortest is None or not isinstance(self.order, FairOrder):
            return shortest
        # Its tenant may be ahead of whoever is next by as much as is given out unordered anyway.
        least = self.order.least() or 0.0
        is_near = counters.of(shortest.tenant) <= least + WINDOW_TOKENS
        return shortest if is_near else self.order.shortest()

    def _is_here(self, request: WaitingRequest) -> bool:
        return self.requests.get(request.request_id) is request


class WaitingQueue:
    """
    Bounded by count and bytes; ordered by class, then by policy. `fcfs` knows no classes.

    The class of the lowest rank goes first. The others don't starve: while anybody in them has
    waited for its class's `aging_s`, every `AGED_EVERY`-th turn is of such a class, one after
    another.
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
        self._last_aged_rank = 0

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

    def first(self, now: float) -> WaitingRequest | None:
        """Return the next request without taking it."""
        turn = next(self.turns(now), None)
        return turn.request if turn is not None else None

    def turns(self, now: float) -> Iterator[Turn]:
        """
        Yield whose turn it is, and then who may pass if that one finds no room.

        The first of each class, for what one waits for another may not need; and the shortest,
        which workers compute beside longer ones. Some are yielded twice.
        """
        lanes = [lane for lane in self._lanes if lane.requests]
        aged = self._aged_lane(lanes, now)
        for lane in lanes if aged is None else (aged, *lanes):
            if (request := lane.order.first()) is not None:
                yield Turn(request, is_aged=lane is aged)
        for lane in lanes:
            if (shortest := lane.shortest(self.counters)) is not None:
                yield Turn(shortest)

    def take(self, request: WaitingRequest, now: float) -> None:
        """Take a request out because it is placed: its tenant is charged for the prompt, once."""
        rank = self._requests[request.request_id].of_class.rank
        is_passing = any(each.requests for each in self._lanes if each.of_class.rank < rank)
        worse = [each for each in self._lanes if each.of_class.rank > rank]
        if is_passing:
            self._num_since_aged = 0
            self._last_aged_rank = rank
        elif any(each.is_aged(now) for each in worse):
            self._num_since_aged += 1
        self.counters.chosen(request.tenant)
        if not request.is_charged:
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

    def work_ahead_s(self, request: WaitingRequest, *, may_pass: bool = False) -> float:
        """
        Return the seconds of work that would go before a newcomer, roughly.

        `may_pass`: seats are free and it is prompts that wait, so that it passes all longer ones.
        """
        lane = self._lane_of(request)
        better = [each for each in self._lanes if each.of_class.rank < lane.of_class.rank]
        before_s = lane.order.work_before_s(request)
        if may_pass:
            before_s = min(before_s, lane.by_length.work_before_s(request))
        return sum(each.order.work_s for each in better) + before_s

    @property
    def work_s(self) -> float:
        """The seconds of work that wait."""
        return sum(each.order.work_s for each in self._lanes)

    def _aged_lane(self, lanes: list[_Lane], now: float) -> _Lane | None:
        """Return the worse class whose turn it is, if it is one's."""
        if self._num_since_aged < AGED_EVERY - 1:
            return None
        aged = [lane for lane in lanes[1:] if lane.is_aged(now)]
        after_last = (each for each in aged if each.of_class.rank > self._last_aged_rank)
        return next(after_last, aged[0] if aged else None)

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
