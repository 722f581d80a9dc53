"""What runs next, and where: the queue and the fleet together. Pure; time comes in as a value."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from slipstream.shared.ids import HostId, RequestId, WorkerId
from slipstream.shared.scheduling.classes import BEST_CLASS, CLASSES
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.scheduling.placed import Placement
from slipstream.shared.scheduling.placement import NO_CACHE, PlacementRules, choose
from slipstream.shared.scheduling.queue import WaitingQueue
from slipstream.shared.scheduling.waiting import WaitingRequest

# So long after the last request of the first class seats are kept free for the next.
_RESERVE_S = 60.0


class Planned(NamedTuple):
    """A request that was taken out of the queue, and where it goes."""

    request: WaitingRequest
    placement: Placement
    job_priority: int  # what workers order by


class Planner:
    """The one place that decides; the live scheduler and the simulator both ask it."""

    def __init__(self, queue: WaitingQueue, fleet: Fleet, rules: PlacementRules) -> None:
        self.queue = queue
        self.fleet = fleet
        self._rules = rules
        self._without_reserve = replace(rules, num_reserved_seats=0)
        self._reserved_until = 0.0

    def add(self, request: WaitingRequest, now: float, *, is_first: bool = False) -> None:
        """Let a request wait for its turn."""
        if request.of_class.rank == 0:
            self._reserved_until = now + _RESERVE_S
        self.queue.add(request, is_first=is_first)

    def next(
        self,
        now: float,
        avoid: Callable[[RequestId], AbstractSet[WorkerId]] = lambda _: frozenset(),
        cached: Callable[[RequestId], Mapping[HostId, int]] = lambda _: NO_CACHE,
    ) -> Planned | None:
        """Take the next request that has somewhere to go, and count it as placed there."""
        if not self.fleet.num_open("decode"):
            return None
        rules = self._rules if now < self._reserved_until else self._without_reserve
        looked_at: set[RequestId] = set()
        for request, is_aged in self.queue.turns(now):
            request_id = request.request_id
            if request_id in looked_at:
                continue
            looked_at.add(request_id)
            # Whose turn it is before the first class, or where there are none, is like the first.
            is_first = is_aged or self.queue.policy == "fcfs"
            rank = 0 if is_first else request.of_class.rank
            placement = choose(
                request, self.fleet, rules, avoid(request_id), cached(request_id), rank
            )
            if placement is not None:
                self.queue.take(request, now)
                num_uncached = request.num_prompt_tokens - placement.num_cached_tokens
                self.fleet.assign(request_id, placement, num_uncached, rank)
                priority = self._job_priority(request, is_aged=is_aged)
                return Planned(request, placement, priority)
        return None

    def _job_priority(self, request: WaitingRequest, *, is_aged: bool) -> int:
        """Return what workers order by. Whose turn came for its age must not wait there again."""
        if self.queue.policy == "fcfs":
            return 0
        of_class = CLASSES[BEST_CLASS] if is_aged else request.of_class
        return of_class.job_priority + request.priority
