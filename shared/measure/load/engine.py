"""Run a load through an engine in this process: what a stack could do if it cost nothing."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.shared.ids import RequestId
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.samples import LoadRun, Sample
from slipstream.shared.messages.packed import PackedInts

_MAX_NAP_S = 0.05  # between two looks whether to stop


@dataclass(frozen=True, slots=True)
class Emitted:
    """What a step said of a request."""

    request_id: RequestId
    num_tokens: int
    is_over: bool
    error: str | None = None


class SteppedEngine(Protocol):
    """An engine that runs when it is told to."""

    @property
    def is_idle(self) -> bool:
        """There is nothing to step."""

    def add(self, request_id: RequestId, token_ids: PackedInts, num_output_tokens: int) -> None:
        """Take a request that is answered greedily, and as long as it is said here."""

    def step(self) -> Sequence[Emitted]:
        """Run one step; return what it said."""

    def clear(self) -> None:
        """Drop all requests."""


def run_in_process(engine: SteppedEngine, load: Load, stop: threading.Event) -> LoadRun:
    """Return all samples. Blocks until the load ends, or somebody says stop."""
    run = _Run(engine, load)
    try:
        while run.go_on() and not stop.is_set():
            pass
    finally:
        engine.clear()
    return LoadRun(list(run.samples.values()), load.warmup_s, load.end_s)


class _Run:
    def __init__(self, engine: SteppedEngine, load: Load) -> None:
        self.samples: dict[RequestId, Sample] = {}
        self._engine = engine
        self._load = load
        self._arrivals = load.arrivals()
        self._began_s = time.perf_counter()

    def go_on(self) -> bool:
        """Step, or sleep until there is something to step; tell whether the run goes on."""
        now_s = self._now_s()
        self._add_due(now_s)
        if not self._engine.is_idle:
            self._step()
            return now_s < self._load.give_up_s
        next_at_s = self._arrivals.next_at_s
        if next_at_s is None and now_s >= self._load.end_s:
            return False
        until_s = self._load.end_s if next_at_s is None else next_at_s
        time.sleep(min(_MAX_NAP_S, max(0.0, until_s - now_s)))
        return True

    def _add_due(self, now_s: float) -> None:
        for arrival in self._arrivals.due(now_s):
            request = self._load.request(arrival.number)
            request_id = RequestId(str(arrival.number))
            self.samples[request_id] = Sample(request, arrival.at_s, now_s)
            self._engine.add(request_id, request.token_ids, request.num_output_tokens)

    def _step(self) -> None:
        said = self._engine.step()
        now_s = self._now_s()
        for each in said:
            sample = self.samples[each.request_id]
            if each.num_tokens:
                sample.arrivals.append((now_s, each.num_tokens))
            if each.is_over:
                sample.ended_s, sample.error = now_s, each.error
                self._arrivals.ended(now_s)

    def _now_s(self) -> float:
        return time.perf_counter() - self._began_s
