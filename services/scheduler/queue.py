"""Requests that wait for a worker: highest priority first, then first come. Pure."""

import heapq
import itertools
from dataclasses import dataclass, field

from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.ids import RequestId

_MIN_COMPACTED = 64


@dataclass
class WaitingQueue:
    """Bounded by count and bytes; a removed entry stays in the heap until it comes up."""

    max_num_requests: int
    max_num_bytes: int
    num_bytes: int = 0
    _heap: list[tuple[int, int, RequestId]] = field(default_factory=list)
    _waiting: dict[RequestId, RequestRecord] = field(default_factory=dict)
    _places: dict[RequestId, int] = field(default_factory=dict)  # their arrival in the heap
    _arrivals: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def __len__(self) -> int:
        return len(self._waiting)

    def can_add(self, num_bytes: int, num_requests: int = 1) -> bool:
        """Tell whether so many more requests of so many bytes in all may wait."""
        return (
            len(self._waiting) + num_requests <= self.max_num_requests
            and self.num_bytes + num_bytes <= self.max_num_bytes
        )

    def add(self, record: RequestRecord, *, is_first: bool = False) -> None:
        """Let a request wait; `is_first` puts one back that was taken and could not be placed."""
        if record.request_id in self._waiting:
            return
        arrival = -next(self._arrivals) if is_first else next(self._arrivals)
        heapq.heappush(self._heap, (-record.request.priority, arrival, record.request_id))
        self._waiting[record.request_id] = record
        self._places[record.request_id] = arrival
        self.num_bytes += record.request.num_bytes
        if len(self._heap) > 2 * len(self._waiting) + _MIN_COMPACTED:
            # Cancelled requests behind a first one that can't be placed would pile up.
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def first(self) -> RequestRecord | None:
        """Return the next request without taking it."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0][2]] if self._heap else None

    def remove(self, request_id: RequestId) -> RequestRecord | None:
        """Take a request out, whatever its place."""
        record = self._waiting.pop(request_id, None)
        if record is not None:
            del self._places[request_id]
            self.num_bytes -= record.request.num_bytes
        return record

    def records(self) -> list[RequestRecord]:
        """Return all that wait, in no order."""
        return list(self._waiting.values())

    def _is_current(self, entry: tuple[int, int, RequestId]) -> bool:
        return self._places.get(entry[2]) == entry[1]
