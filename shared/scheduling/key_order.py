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

# A point of priority is worth so many seconds of waiting: whoever waits long enough goes first.
PRIORITY_S = 10.0
# A second of work counts like so many of waiting: a long request passes the short ones that come
# after it has waited that many times the difference.
WORK_AGING = 30.0

_MIN_COMPACTED = 64

Key = Callable[[WaitingRequest], float]

# Aging needs no clock: if the importance of all grows at one rate, their order stays as it was.
KEYS: Mapping[KeyPolicy, Key] = MappingProxyType(
    {
        "fcfs": lambda each: each.arrived_at,
        "priority": lambda each: each.arrived_at - PRIORITY_S * each.priority,
        "sjf": lambda each: each.arrived_at + WORK_AGING * each.work_s,
        "deadline": lambda each: math.inf if each.deadline_at is None else each.deadline_at,
    }
)


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

    def _is_current(self, entry: tuple[bool, float, int, RequestId]) -> bool:
        found = self._entries.get(entry[3])
        return found is not None and found[1] == entry[2]
