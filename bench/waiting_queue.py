"""
Measure what the waiting queue takes over one request while many wait, under each policy.

    python bench/waiting_queue.py --waiting 10000 --samples 20000 --json FILE

Each round lets a request wait, takes the next one and puts it back, takes it for good, and takes
another one out of the middle and lets it wait again with another priority. NATS is left out.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from results import heading, make_parser, microseconds, row, write_results

from slipstream.shared.ids import RequestId
from slipstream.shared.scheduling.classes import CLASSES
from slipstream.shared.scheduling.queue import POLICIES, Policy, WaitingQueue
from slipstream.shared.scheduling.waiting import WaitingRequest

_NUM_TENANTS = 100
T = TypeVar("T")


@dataclass
class FullQueue:
    """A queue in which so many wait, and what it takes over each verb."""

    policy: Policy
    num_waiting: int
    clock: Callable[[], int] = time.perf_counter_ns
    samples: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.queue = WaitingQueue(2 * self.num_waiting, 2**40, self.policy)
        self._random = random.Random(self.num_waiting)
        self._now = 0.0
        self._num_requests = 0
        self._names: list[RequestId] = []
        while len(self.queue) < self.num_waiting:
            self.queue.add(self._request())

    def round(self) -> None:
        """Do everything once."""
        self._now += 0.001
        newcomer = self._request()
        self._timed("enqueue", lambda: self.queue.add(newcomer))
        first = self._timed("next", lambda: self.queue.first(self._now))
        assert first is not None, "many wait"
        self._timed("dequeue", lambda: self.queue.take(first, self._now))
        self._timed("put back", lambda: self.queue.add(first, is_first=True))
        self.queue.take(first, self._now)
        moved = self.queue.remove(self._waiting_name())
        assert moved is not None, "it waits"
        changed = replace(moved, priority=self._random.randrange(-5, 5))
        self.queue.add(moved)
        self._timed("reorder", lambda: self._reorder(changed))

    def _reorder(self, changed: WaitingRequest) -> None:
        self.queue.remove(changed.request_id)
        self.queue.add(changed)

    def _waiting_name(self) -> RequestId:
        """Return one of those that wait, any."""
        while True:
            place = self._random.randrange(len(self._names))
            name = self._names[place]
            if self.queue.has(name):
                return name
            self._names[place] = self._names[-1]
            self._names.pop()

    def _request(self) -> WaitingRequest:
        self._num_requests += 1
        name = RequestId(f"r{self._num_requests}")
        self._names.append(name)
        num_tokens = self._random.randrange(10, 2000)
        return WaitingRequest(
            request_id=name,
            arrived_at=self._now,
            num_prompt_tokens=num_tokens,
            work_s=num_tokens / 1000,
            tenant=f"t{self._random.randrange(_NUM_TENANTS)}",
            latency_class=self._random.choice(sorted(CLASSES)),
            priority=self._random.randrange(-5, 5),
            deadline_at=self._now + self._random.random() * 300,
            num_bytes=400,
        )

    def _timed(self, name: str, act: Callable[[], T]) -> T:
        began = self.clock()
        result = act()
        self.samples[name].append(self.clock() - began)
        return result


def main() -> None:
    """Measure, print, write the file."""
    parser = make_parser(__doc__)
    parser.add_argument("--waiting", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--samples", type=int, default=20_000, help="of each (default: 20000)")
    options = parser.parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    print(heading())
    for policy in POLICIES:
        full = FullQueue(policy, options.waiting)
        for _ in range(options.samples):
            full.round()
        figures[policy] = {verb: microseconds(taken) for verb, taken in full.samples.items()}
        for verb, each in figures[policy].items():
            print(row(f"{policy} {verb}", each))
    write_results(options, figures, "us")


if __name__ == "__main__":
    main()
