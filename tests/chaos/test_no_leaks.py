"""A day's requests with cancels and deaths of workers leave no block and no memory behind."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from slipstream.shared.measure.load.traces import Lengths, fit, read_trace
from tests.chaos.crowd import Crowd, gathered
from tests.chaos.manager_watch import ManagerWatch, watching
from tests.end_to_end import stack

pytestmark = [pytest.mark.nats]

# Beside the repository, where it is not said.
_TRACES = Path(os.environ.get("TRACES_DIR", Path(__file__).parents[3] / "shared" / "traces"))
_TRACE = "azure_conv_2023.csv"
_MAX_NUM_TOKENS = 512  # prompt and answer: what the longest of a hundred is scaled to
_NUM_BLOCKS = 384
_NUM_TOGETHER = 32
_ANSWER_S = 30.0
_CANCELLED = 0.2
_CANCEL_S = 0.15  # on average
_WORKERS = ("prefill-1", "prefill-2", "decode-1", "decode-2")
_MAX_GROWTH_KIB = 1024  # of the manager's own memory once it is warm
_CLEAR = {"length", "abort", "cancelled", "worker_lost", "lost", "deadline_exceeded"}


@dataclass(frozen=True)
class Day:
    """How much happens."""

    num_requests: int
    num_kills: int

    @property
    def num_warm(self) -> int:
        """After so many requests nothing may grow any more."""
        return self.num_requests // 3


@pytest.mark.parametrize(
    "day",
    [
        pytest.param(Day(300, 2), id="quick", marks=[pytest.mark.timeout(120), pytest.mark.slow]),
        pytest.param(
            Day(10_000, 30), id="whole", marks=[pytest.mark.slow, pytest.mark.timeout(900)]
        ),
    ],
)
async def test_cancels_and_kills_leave_no_block_and_no_memory(tmp_path: Path, day: Day) -> None:
    requests = _requests(day)
    variables = {
        "SLIPSTREAM_KV_BLOCKS": str(_NUM_BLOCKS),
        "SLIPSTREAM_LEASE_MS": "6000",
        "SLIPSTREAM_FAKE_STEP_MS": "1",
    }
    options = ["--test-mode", "--engine", "fake", "--prefill", "2", "--decode", "2"]
    with stack.running([*options, "--log-level", "warning"], tmp_path, variables) as running:
        manager = running.pid("kv")
        async with gathered(running.nats_url, day.num_requests, _ANSWER_S) as (crowd, asking):
            num_done = crowd.outcomes.total
            async with watching(asking, manager, num_done) as watch, _killing(running, crowd, day):
                await _ask_all(crowd, requests)
            books = await asking.idle_audit()
        assert manager == running.pid("kv")
        log = "".join(running.lines)

    _check_endings(crowd, day)
    assert [] == books.get("problems", [])
    held = {each: books[f"num_{each}"] for each in ("leases", "granted", "leased", "quarantined")}
    assert dict.fromkeys(held, 0) == held
    assert _NUM_BLOCKS == books["num_free"] + books["num_cached"]
    _check_manager(watch, day)
    assert "kv_mismatch" not in log


def _check_endings(crowd: Crowd, day: Day) -> None:
    assert [] == crowd.wrong
    assert crowd.num_told_twice <= max(2, day.num_kills // 3)
    assert day.num_requests == crowd.outcomes.total()
    assert set(crowd.outcomes) <= _CLEAR, crowd.outcomes
    assert crowd.outcomes["length"] > day.num_requests / 2
    assert crowd.outcomes["abort"] + crowd.outcomes["cancelled"] > day.num_requests / 50


def _check_manager(watch: ManagerWatch, day: Day) -> None:
    assert 0 == sum(each.num_problems for each in watch.samples)
    # Of a killed worker's requests the old attempt and the new one may be held at once.
    assert max(each.num_leases for each in watch.samples) <= 2 * _NUM_TOGETHER
    assert max(each.num_indexed for each in watch.samples) <= _NUM_BLOCKS
    assert watch.grown_kib(day.num_warm) <= _MAX_GROWTH_KIB


async def _ask_all(crowd: Crowd, requests: Sequence[Lengths]) -> None:
    random = Random(len(requests))
    waiting = iter(requests)

    async def ask_one_after_another() -> None:
        for each in waiting:
            is_cancelled = random.random() < _CANCELLED
            after_s = random.expovariate(1 / _CANCEL_S) if is_cancelled else None
            await crowd.ask(each.num_prompt_tokens, each.num_output_tokens, cancel_after_s=after_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(_NUM_TOGETHER):
            group.create_task(ask_one_after_another())


@contextlib.asynccontextmanager
async def _killing(running: stack.Stack, crowd: Crowd, day: Day) -> AsyncIterator[None]:
    """Kill workers as requests are answered; each must come back, and all must have been killed."""
    random = Random(day.num_kills)
    moments = sorted(random.sample(range(day.num_requests * 9 // 10), day.num_kills))

    async def kill(moment: int) -> None:
        while crowd.outcomes.total() < moment:
            await asyncio.sleep(0.01)
        name = random.choice(_WORKERS)
        old_pid = running.kill(name)
        await asyncio.to_thread(running.wait_restarted, name, old_pid)

    async def kill_one_after_another() -> None:
        for moment in moments:
            await kill(moment)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill_one_after_another())
        yield


def _requests(day: Day) -> list[Lengths]:
    """Return the trace's first requests, scaled to what a small pool holds many of."""
    path = _TRACES / _TRACE
    if not path.exists():
        pytest.skip(f"{path} is not there: TRACES_DIR names the directory of the traces")
    return fit(read_trace(path), _MAX_NUM_TOKENS)[: day.num_requests]
