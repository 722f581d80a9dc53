"""Waiting requests by a key that never changes while they wait. Pure."""

import heapq
import itertools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from slipstream.shared.ids import RequestId
from slipstream.shared.scheduling.waiting import WaitingRequest

KeyPolicy = Literal["fcfs", "priority", "sjf", "deadline"]

# A point of priority is worth this part of what the class promises for the first token, and all of
# a request's work at most that part: whoever waits long enough goes first, before it is too late.
PRIORITY_PART = 1 / 20
MAX_WORK_PART = 1 / 2
# So much work counts half of that, twice as much two thirds, and so on: more is always worse.
HALF_WORK_S = 1.0

_MIN_COMPACTED = 64
_NUM_SAMPLED = 64
_GOLDEN = 0.618

Key = Callable[[WaitingRequest], float]


def _by_priority(request: WaitingRequest) -> float:
    ahead_s = PRIORITY_PART * request.of_class.ttft_target_s * request.priority
    return request.arrived_at - ahead_s


def _by_work(request: WaitingRequest) -> float:
    most_s = MAX_WORK_PART * request.of_class.ttft_target_s
    return request.arrived_at + most_s * request.work_s / (request.work_s + HALF_WORK_S)


# Aging needs no clock: if the importance of all grows at one rate, their order stays as it was.
KEYS: Mapping[KeyPolicy, Key] = MappingProxyType(
    {
        "fcfs": lambda each: each.arrived_at,
        "priority": _by_priority,
        "sjf": _by_work,
        "deadline": lambda each: math.inf if each.deadline_at is None else each.deadline_at,
    }
)


def length(request: WaitingRequest) -> float:
    """Return how much of a prompt is to be computed: the key of who is shortest."""
    return request.num_uncached_tokens


class KeyOrder:
    """The least key first, then first come; a removed entry stays in the heap until it comes up."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heap: list[tuple[bool, float, int, RequestId]] = []
        self._entries: dict[RequestId, tuple[WaitingRequest, int]] = {}
        self._arrivals = itertools.count(1)
        self.work_s = 0.0  # of all that wait

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, request: WaitingRequest, *, is_first: bool = False) -> None:
        """Let a request wait; `is_first` puts one before all others that was taken already."""
        number = next(self._arrivals)
        self._entries[request.request_id] = (request, number)
        self.work_s += request.work_s
        # Of several that come back the oldest is first, as it was.
        key = request.arrived_at if is_first else self._key(request)
        heapq.heappush(self._heap, (not is_first, key, number, request.request_id))
        if len(self._heap) > 2 * len(self._entries) + _MIN_COMPACTED:
            # Cancelled requests behind a first one that can't be placed would pile up.
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def first(self) -> WaitingRequest | None:
        """Return the next request without taking it."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._entries[self._heap[0][3]][0] if self._heap else None

    def remove(self, request: WaitingRequest) -> None:
        """Take a request out, whatever its place."""
        del self._entries[request.request_id]
        self.work_s = self.work_s - request.work_s if self._entries else 0.0

    def work_before_s(self, request: WaitingRequest) -> float:
        """Return the work of those that a newcomer would come after, of many by a sample."""
        key, num = self._key(request), len(self._heap)
        # Places that follow no pattern, and the same for the same queue.
        step = max(1, round(_GOLDEN * num)) if num > _NUM_SAMPLED else 1
        seen_s = before_s = 0.0
        for place in range(min(num, _NUM_SAMPLED)):
            is_later, each, number, request_id = self._heap[place * step % num]
            known = self._entries.get(request_id)
            if known is not None and known[1] == number:
                seen_s += known[0].work_s
                before_s += known[0].work_s if not is_later or each <= key else 0.0
        return self.work_s * before_s / seen_s if seen_s else 0.0

    def _is_current(self, entry: tuple[bool, float, int, RequestId]) -> bool:
        found = self._entries.get(entry[3])
        return found is not None and found[1] == entry[2]
