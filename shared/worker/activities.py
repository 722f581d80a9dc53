"""What a worker's time goes into, and that of the requests which it holds meanwhile."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, Literal

Activity = Literal[
    "waiting", "weights", "kv", "arithmetic", "sampling", "messages", "other", "idle"
]

# In the order in which they are shown. Each moment of a worker's time belongs to one of them.
ACTIVITIES: Final[tuple[Activity, ...]] = (
    "waiting",  # for KV blocks, or for cores that others have
    "weights",  # multiplying with matrices
    "kv",  # writing keys and values, and attention over them
    "arithmetic",  # all else that kernels compute
    "sampling",  # choosing tokens, and their text
    "messages",  # asking, telling, and what the event loop does before it goes on
    "other",  # planning steps, and what nothing here has a name for
    "idle",  # there is no request
)


class ActivityClock:
    """
    Counts seconds by activity: of the worker, and summed over its requests.

    A request that isn't among those being stepped waits, and so does a worker that holds no other.
    `count` tells how many are stepped, and how many are held.
    """

    def __init__(
        self,
        count: Callable[[], tuple[int, int]] = lambda: (0, 0),
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.count = count
        self._now = now
        self._activity: Activity = "idle"
        self._since = now()
        self._num_stepped, self._num_held = 0, 0
        self._seconds: dict[Activity, float] = defaultdict(float)
        self._request_seconds: dict[Activity, float] = defaultdict(float)

    def enter(self, activity: Activity) -> None:
        """From now on it is this one."""
        now = self._now()
        self._add(self._activity, now - self._since)
        self._activity, self._since = activity, now
        self._num_stepped, self._num_held = self.count()

    def recount(self) -> None:
        """A request has come or gone; what is done is the same."""
        self.enter(self._activity)

    def split(self, parts: Mapping[Activity, float]) -> None:
        """Say of the time since the last `enter` what so much of it was in truth."""
        for activity, seconds in parts.items():
            self._add(activity, seconds)
            self._since += seconds

    def seconds(self) -> dict[Activity, float]:
        """Return the sums up to now: they make up all of the time since the clock was made."""
        found = {each: self._seconds[each] for each in ACTIVITIES}
        found[self._of_worker(self._activity)] += self._now() - self._since
        return found

    def request_seconds(self) -> dict[Activity, float]:
        """Return the same, each moment counted once for each request that was held."""
        found = {each: self._request_seconds[each] for each in ACTIVITIES}
        for activity, seconds in self._of_requests(self._activity, self._now() - self._since):
            found[activity] += seconds
        return found

    def _add(self, activity: Activity, seconds: float) -> None:
        self._seconds[self._of_worker(activity)] += seconds
        for one, of_requests in self._of_requests(activity, seconds):
            self._request_seconds[one] += of_requests

    def _of_worker(self, activity: Activity) -> Activity:
        return "waiting" if activity == "idle" and self._num_held else activity

    def _of_requests(self, activity: Activity, seconds: float) -> list[tuple[Activity, float]]:
        num_aside = max(0, self._num_held - self._num_stepped)
        return [(activity, seconds * self._num_stepped), ("waiting", seconds * num_aside)]
