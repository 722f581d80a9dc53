"""Modes and the engine take turns, and what fails is said at once."""

import threading
from collections.abc import Callable

import pytest

from slipstream.services.cli.serve_bench import Bench, NothingServedError, capacity
from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.services.cli.serve_bench_options import ServeBenchOptions
from slipstream.services.cli.serve_bench_plan import Level, ServePlan, make_plan
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.measure.load.engine import SteppedEngine
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.samples import LoadRun
from tests.unit.measure.load.load_samples import make_sample
from tests.unit.measure.load.test_engine_run import OneTokenAStep

_OPTIONS = ServeBenchOptions(rounds=2, seconds=1.0, warmup=0.0, rate="1,2")


def _answered() -> LoadRun:
    return LoadRun([make_sample(0.0, 0.25, 0.5)], 0.0, 1.0)


class Recorder(LoadClient):
    """Notes what it would have sent."""

    def __init__(
        self, name: str, said: list[str], answer: Callable[[], LoadRun] = _answered
    ) -> None:
        super().__init__(MemoryBus(MemoryBroker()))
        self._name = name
        self._said = said
        self._answer = answer

    async def run(self, load: Load, cache_salt: str) -> LoadRun:
        num_requests = len(load.arrivals().due(load.end_s))
        self._said.append(f"{self._name}, {num_requests} requests, {cache_salt}")
        return self._answer()


@pytest.fixture
def plan() -> ServePlan:
    return make_plan(_OPTIONS, 50_000, 2048)


async def test_every_other_round_goes_the_other_way(
    plan: ServePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A B, then B A: what changes on the machine meanwhile falls on all of them alike."""
    said: list[str] = []

    def run_engine(_engine: SteppedEngine, _load: Load, _stop: threading.Event) -> LoadRun:
        said.append("engine")
        return _answered()

    monkeypatch.setattr("slipstream.services.cli.serve_bench.run_in_process", run_engine)
    clients = {name: Recorder(name, said) for name in ("a", "b")}
    cells = await Bench(plan, clients, {"a": OneTokenAStep()}).measure(plan.levels[:1])

    order = [each.partition(",")[0] for each in said]
    assert ["a", "engine", "b", "b", "engine", "a"] == order
    assert [(2, 2), (2, 0)] == [(len(cell.runs), len(cell.engine_runs)) for cell in cells]
    sent = [each.partition(",")[2] for each in said if each != "engine"]
    assert sent[0] == sent[1]
    assert sent[2] == sent[3]


async def test_the_bench_ends_as_soon_as_nothing_is_served(plan: ServePlan) -> None:
    said: list[str] = []

    def refused() -> LoadRun:
        return LoadRun([make_sample(0.0, error="overloaded: go away")], 0.0, 1.0)

    bench = Bench(plan, {"a": Recorder("a", said, refused)}, {})

    with pytest.raises(NothingServedError, match=r"a, 1 requests/s: all 1 .*overloaded: go away"):
        await bench.measure(plan.levels[:1])
    assert 1 == len(said)


async def test_the_highest_rate_is_that_of_answers_of_the_usual_length(plan: ServePlan) -> None:
    """Two tokens a second, of answers that have two: one request a second."""
    said: list[str] = []

    assert 1.0 == await capacity(Recorder("a", said), plan, 5)


async def test_without_any_token_there_is_no_highest_rate(plan: ServePlan) -> None:
    def silent() -> LoadRun:
        return LoadRun([make_sample(0.0)], 0.0, 1.0)

    with pytest.raises(NothingServedError, match="no token came within 1 s"):
        await capacity(Recorder("a", [], silent), plan, 5)


def test_levels_have_names() -> None:
    assert ("3 streams", "0.5 requests/s") == (Level(streams=3).name, Level(rate=0.5).name)
