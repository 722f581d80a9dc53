"""Requests by when somebody must look at their deadline. Pure: times come in as values."""

import heapq
import itertools
from collections.abc import Callable

from slipstream.shared.ids import RequestId

_MIN_COMPACTED = 1024


class Deadlines:
    """A heap, so that ten thousand requests that wait cost nothing until their time comes."""

    def __init__(self, is_known: Callable[[RequestId], bool]) -> None:
        self._is_known = is_known
        self._heap: list[tuple[float, int, RequestId]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def look_at(self, request_id: RequestId, at: float) -> None:
        """Have a request looked at, at some time."""
        heapq.heappush(self._heap, (at, next(self._numbers), request_id))

    def due(self, now: float) -> list[RequestId]:
        """Return the requests whose time has come, each once; those that have ended are dropped."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            request_id = heapq.heappop(self._heap)[2]
            if self._is_known(request_id):
                found.append(request_id)
        return found

    def compact(self, num_known: int) -> None:
        """Drop those that have ended, if most have: deadlines lie far ahead of most endings."""
        if len(self._heap) > 2 * num_known + _MIN_COMPACTED:
            self._heap = [entry for entry in self._heap if self._is_known(entry[2])]
            heapq.heapify(self._heap)
