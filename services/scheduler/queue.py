"""Requests that wait for a worker: highest priority first, then first come. Pure."""

import heapq
import itertools
from dataclasses import dataclass, field

from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.ids import RequestId


@dataclass
class WaitingQueue:
    """Bounded by count and bytes; a removed entry stays in the heap until it comes up."""

    max_num_requests: int
    max_num_bytes: int
    num_bytes: int = 0
    _heap: list[tuple[int, int, RequestId]] = field(default_factory=list)
    _waiting: dict[RequestId, RequestRecord] = field(default_factory=dict)
    _arrivals: "itertools.count[int]" = field(default_factory=itertools.count)

    def __len__(self) -> int:
        return len(self._waiting)

    def can_add(self, num_bytes: int) -> bool:
        """Tell whether one more request may wait."""
        return (
            len(self._waiting) < self.max_num_requests
            and self.num_bytes + num_bytes <= self.max_num_bytes
        )

    def add(self, record: RequestRecord, *, is_first: bool = False) -> None:
        """Let a request wait; `is_first` puts one back that was taken and could not be placed."""
        arrival = -next(self._arrivals) if is_first else next(self._arrivals)
        heapq.heappush(self._heap, (-record.request.priority, arrival, record.request_id))
        self._waiting[record.request_id] = record
        self.num_bytes += record.request.num_bytes

    def first(self) -> RequestRecord | None:
        """Return the next request without taking it."""
        while self._heap and self._heap[0][2] not in self._waiting:
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0][2]] if self._heap else None

    def remove(self, request_id: RequestId) -> RequestRecord | None:
        """Take a request out, whatever its place."""
        record = self._waiting.pop(request_id, None)
        if record is not None:
            self.num_bytes -= record.request.num_bytes
        return record

    def records(self) -> list[RequestRecord]:
        """Return all that wait, in no order."""
        return list(self._waiting.values())
