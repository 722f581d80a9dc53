"""A load is driven through an engine step by step, and every token is noted when it came."""

import random
import threading
import time

from slipstream.shared.ids import RequestId
from slipstream.shared.measure.load.arrivals import Arrivals, ScheduledArrivals, StreamArrivals
from slipstream.shared.measure.load.engine import Emitted, run_in_process
from slipstream.shared.measure.load.load import Load
from slipstream.shared.messages.packed import PackedInts

from .load_samples import make_request

_STEP_S = 0.01


class OneTokenAStep:
    """Says a token of each request a step."""

    def __init__(self) -> None:
        self.left: dict[RequestId, int] = {}
        self.most = 0

    @property
    def is_idle(self) -> bool:
        return not self.left

    def add(self, request_id: RequestId, token_ids: PackedInts, num_output_tokens: int) -> None:
        assert 2 == len(token_ids)
        self.left[request_id] = num_output_tokens
        self.most = max(self.most, len(self.left))

    def step(self) -> list[Emitted]:
        time.sleep(_STEP_S)
        said = [Emitted(each, 1, left == 1) for each, left in self.left.items()]
        self.left = {each: left - 1 for each, left in self.left.items() if left > 1}
        return said

    def clear(self) -> None:
        self.left.clear()


def _load(arrivals: Arrivals, seconds: float, num_output: int, drain_s: float = 1.0) -> Load:
    request = make_request(num_output)
    return Load(lambda: arrivals, lambda _: request, 0.0, seconds, drain_s)


def test_requests_begin_when_they_are_due_and_are_all_answered() -> None:
    engine = OneTokenAStep()
    load = _load(ScheduledArrivals([0.0, 0.1, 0.25]), 0.3, num_output=3)

    run = run_in_process(engine, load, threading.Event())

    assert [0.0, 0.1, 0.25] == [each.due_s for each in run.samples]
    for sample in run.samples:
        assert sample.is_served
        assert sample.ttft_ms is not None
        assert _STEP_S * 1000 <= sample.ttft_ms < 500
        assert [1, 1, 1] == [num_tokens for _, num_tokens in sample.arrivals]


def test_a_closed_loop_keeps_its_streams_busy() -> None:
    engine = OneTokenAStep()
    arrivals = StreamArrivals(3, 0.5, 0.0, 0.0, random.Random(1))

    run = run_in_process(engine, _load(arrivals, 0.5, num_output=4), threading.Event())

    assert 3 == engine.most
    assert len(run.samples) > 6
    assert all(each.is_served for each in run.samples)


def test_what_is_not_answered_in_time_stays_unfinished() -> None:
    engine = OneTokenAStep()
    load = _load(ScheduledArrivals([0.0]), 0.05, num_output=10_000, drain_s=0.05)

    (sample,) = run_in_process(engine, load, threading.Event()).samples

    assert sample.ended_s is None
    assert not sample.is_served
    assert engine.is_idle


def test_a_run_ends_when_somebody_says_stop() -> None:
    stop = threading.Event()
    stop.set()
    began_s = time.perf_counter()

    run_in_process(OneTokenAStep(), _load(ScheduledArrivals([5.0]), 60.0, 1), stop)

    assert time.perf_counter() - began_s < 5
