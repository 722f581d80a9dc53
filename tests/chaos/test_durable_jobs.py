"""Durable jobs end exactly once, with the right text, whoever is killed, and all at once too."""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from slipstream.shared.lifecycle import read_status
from tests.chaos.durable_jobs import job_book, make_jobs
from tests.chaos.processes import Process, Processes

pytestmark = pytest.mark.nats

_NATS = "nats"
_READY_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Plan:
    """How much happens."""

    num_jobs: int
    longest: int  # tokens of an answer, but for those that the full stop meets
    every_s: float  # between two kills
    num_kills: int  # before the full stop, and after it
    services: tuple[str, ...]
    step_ms: float
    down_s: float  # for which nothing at all runs
    redelivery_s: float  # shorter than the server is away, each restart is a delivery of all
    ended_s: float  # what all may take once nobody is killed any more

    seeds: tuple[int, int]  # of who is killed when

    @property
    def num_third(self) -> int:
        """How many are submitted in each phase."""
        return self.num_jobs // 3

    @property
    def rest_s(self) -> float:
        """Between two submissions: the last one comes about when the last kill does."""
        return self.num_kills * self.every_s / self.num_third


_FEW = ("scheduler", "kv", "prefill", "decode")
_MANY = ("scheduler-1", "scheduler-2", "kv", "prefill-1", "prefill-2", "decode-1", "decode-2")
# A scheduler is killed, then everything, then a decode worker.
_QUICK = Plan(30, 40, 0.2, 1, _FEW, 4.0, 0.2, 1.0, 30.0, (3, 4))
_WHOLE = Plan(300, 160, 2.0, 45, _MANY, 8.0, 2.0, 5.0, 420.0, (1, 2))


@dataclass(eq=False)
class Victims:
    """All that can be killed, and how often it was."""

    server: Any  # Any: the fixture's server
    processes: Processes
    num_killed: Counter[str] = field(default_factory=Counter)
    num_revived: int = 0  # of those that ended by themselves, as workers do whose manager is gone

    def start(self, *names: str) -> None:
        """Start services that don't run."""
        for name in names:
            self.processes.start(name, name.partition("-")[0])

    def kill(self, name: str) -> None:
        """Kill one, which starts again at once."""
        self.num_killed[name.partition("-")[0]] += 1
        if name == _NATS:
            self._kill_server()
            self.server.start()
            return
        self._end(self._running(name))
        self.start(name)

    def kill_all(self) -> list[str]:
        """Kill all services, stop the server; return the names of the services."""
        names = [each.name for each in self.processes.running]
        for each in list(self.processes.running):
            each.process.kill()
        # Told to: one that is killed forgets acknowledgements, and what was lost would come again.
        self.server.stop()
        for each in list(self.processes.running):
            self._end(each)
        return names

    def is_ready(self, name: str) -> bool:
        """Tell whether a service has been ready since it was started."""
        if name == _NATS:
            return True
        each = self._running(name)
        status = read_status(each.status_file)
        return status is not None and (status.pid, status.state) == (each.process.pid, "ready")

    async def until_ready(self, *names: str) -> None:
        """Return when these can take work."""
        async with asyncio.timeout(_READY_S):
            while not all(self.is_ready(name) for name in names):
                await asyncio.sleep(_POLL_S)

    async def tend(self) -> None:
        """Start again who ends, as every supervisor does."""
        while True:
            for each in list(self.processes.running):
                if each.process.poll() is not None:
                    self.num_revived += 1
                    self._end(each)
                    self.start(each.name)
            await asyncio.sleep(_POLL_S)

    def _running(self, name: str) -> Process:
        (found,) = (each for each in self.processes.running if each.name == name)
        return found

    def _kill_server(self) -> None:
        self.server._process.send_signal(signal.SIGKILL)
        self.server.stop()

    def _end(self, victim: Process) -> None:
        victim.process.kill()
        victim.process.wait(_READY_S)
        self.processes.running.remove(victim)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(_QUICK, id="quick", marks=pytest.mark.timeout(120)),
        pytest.param(_WHOLE, id="whole", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
async def test_killed_at_any_point_every_job_ends_once(
    own_nats_server: Any, tmp_path: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = make_jobs(plan.num_jobs, plan.longest)
    with _victims(own_nats_server, tmp_path, plan) as victims:
        async with job_book(own_nats_server.url) as book, running(victims.tend()):
            await victims.until_ready(*plan.services)
            first, together, last = (jobs[n * plan.num_third :][: plan.num_third] for n in range(3))
            async with running(book.submit(first, plan.rest_s)) as submitting:
                # What is killed before there is work proves nothing.
                await book.until_results(1, _READY_S)
                await _kill_one_after_another(victims, plan, plan.seeds[0])
                await submitting
            await book.submit(together, 0)
            # Lost, were they acknowledged before they are answered.
            await book.until_taken(3, _READY_S)
            num_before = await book.num_results()
            await _stop_all(victims, plan.down_s)
            async with running(book.submit(last, plan.rest_s)) as submitting:
                await _kill_one_after_another(victims, plan, plan.seeds[1])
                await submitting
            await book.until_results(plan.num_jobs, plan.ended_s)
            await book.submitter.until_empty()
            problems = await book.problems(jobs)
            await victims.until_ready(*plan.services)
    with capsys.disabled():
        said = f"{plan.num_jobs} jobs, killed {dict(victims.num_killed)} and all at once"
        print(f"\n{said}; {victims.num_revived} ended with their KV manager")  # noqa: T201 - a figure

    assert [] == problems, f"{len(problems)} of {plan.num_jobs} jobs"
    assert num_before is not None
    assert num_before < 2 * plan.num_third, "the full stop came when all was done"
    assert 2 * plan.num_kills == victims.num_killed.total()


async def _kill_one_after_another(victims: Victims, plan: Plan, seed: int) -> None:
    """Kill at random, each but once before it was ready again, and each in turn at least."""
    random = Random(seed)
    names = [*plan.services, _NATS]
    waiting: list[str] = []
    for _ in range(plan.num_kills):
        await asyncio.sleep(plan.every_s)
        waiting = waiting or random.sample(names, len(names))
        name = waiting.pop()
        await victims.until_ready(name)
        victims.kill(name)


async def _stop_all(victims: Victims, down_s: float) -> None:
    names = victims.kill_all()
    await asyncio.sleep(down_s)
    victims.server.start()
    victims.start(*names)
    await victims.until_ready(*names)


@contextlib.contextmanager
def _victims(server: Any, directory: Path, plan: Plan) -> Iterator[Victims]:
    processes = Processes(
        server.url,
        directory,
        KV_BLOCKS=1024,
        FAKE_STEP_MS=plan.step_ms,
        REDELIVERY_S=plan.redelivery_s,
        LEASE_MS=3000,
        LOG_LEVEL="warning",
    )
    victims = Victims(server, processes)
    try:
        victims.start(*plan.services)
        yield victims
        # Workers end before their manager, in whatever order they were started last.
        processes.running.sort(key=lambda each: plan.services.index(each.name))
        processes.stop()
    finally:
        processes.close()


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """Have something done while a block runs; what is left of it then is given up."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
