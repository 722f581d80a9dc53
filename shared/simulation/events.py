"""What happens next, in the order of a clock that only jumps."""

import heapq
from collections.abc import Callable


class EventLoop:
    """Runs what is due, the earliest first; of one moment what was planned first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Have something done at a time, or now if that is over."""
        self._number += 1
        heapq.heappush(self._heap, (max(time_s, self.now), self._number, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have something done in a while."""
        self.at(self.now + seconds, action)

    def run(self) -> None:
        """Go on until nothing is planned any more."""
        heap, pop = self._heap, heapq.heappop
        while heap:
            self.now, _, action = pop(heap)
            self.num_events += 1
            action()
