"""
A worker frozen inside a step past its leases, and woken after others wanted its blocks, harms none.

All others stand still while it is woken, so that every byte that changes then is its work.
"""

import asyncio
import contextlib
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from slipstream.shared.kv.arena import Arena, old_arenas
from slipstream.shared.worker.model_source import open_model
from tests.chaos import kv_process
from tests.chaos.crowd import Crowd, gathered
from tests.chaos.kv_process import BOOKS, Books
from tests.chaos.processes import Process, Processes, all_frozen
from tests.end_to_end import client

pytestmark = [pytest.mark.nats, pytest.mark.timeout(180)]

_NUM_BLOCKS = 64
_LEASE_MS = 400
_STEP_MS = 8
_NUM_TOGETHER = 14
_ANSWER_S = 30.0
_CHANGED_S = 10.0
_PRESSURE_S = 0.25  # for others to take whatever they can get
_AWAKE_S = 0.05  # several steps, were they allowed
_SHOWN_S = 5
# What a client may be told of a worker that slept through its leases.
_CLEAR = {
    *("length", "lease_lost", "worker_lost", "lost", "deadline_exceeded", "no_answer"),
    # Each of three attempts met a sleeper, the last one on its way to the decode worker.
    *("kv_expired", "kv_unknown_lease", "kv_not_holder"),
}


@dataclass(eq=False)
class Host:
    """One host's processes, and its arena as the test sees it."""

    processes: Processes
    asking: client.Client
    crowd: Crowd
    arena: Arena
    victims: list[Process]

    async def books(self) -> Books:
        """Return who may write what."""
        answer = await self.asking.connection.request(BOOKS, b"", timeout=_SHOWN_S)
        return msgspec.json.decode(answer.data, type=Books)

    async def until_books(self, is_true: Callable[[Books], bool]) -> None:
        """Return as soon as the books fulfil a condition."""
        async with asyncio.timeout(_CHANGED_S):
            while not is_true(await self.books()):
                await asyncio.sleep(0.02)

    def checksums(self) -> list[int]:
        """Return one a block."""
        size = self.arena.block_bytes
        starts = range(0, len(self.arena.blocks), size)
        return [zlib.crc32(self.arena.blocks[start : start + size]) for start in starts]


@dataclass
class Seen:
    """What the instants came to: without these the test would prove nothing."""

    num_in_step: int = 0  # woken workers that wrote
    num_quarantined: int = 0  # blocks
    num_reused: int = 0  # blocks taken by others while a worker was frozen
    trespasses: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    "num_instants", [6, pytest.param(50, marks=pytest.mark.slow)], ids=["quick", "whole"]
)
async def test_who_wakes_after_its_lease_changes_no_byte_of_others(
    own_nats_server: Any, tmp_path: Path, num_instants: int
) -> None:
    async with _host(own_nats_server.url, tmp_path) as host:
        async with _load(host):
            seen = await _freeze_and_wake(host, num_instants)
        await _check_all_is_well(host, num_instants)

    assert [] == seen.trespasses
    assert seen.num_in_step >= num_instants // 4
    assert seen.num_quarantined >= num_instants
    assert seen.num_reused >= num_instants


@pytest.mark.slow
async def test_without_quarantine_the_same_is_found_to_do_harm(
    own_nats_server: Any, tmp_path: Path
) -> None:
    """Or the test above would pass whatever the manager does."""
    broken = "--broken-quarantine"
    async with _host(own_nats_server.url, tmp_path, broken) as host, _load(host):
        seen = await _freeze_and_wake(host, 6)

    assert seen.trespasses


async def _freeze_and_wake(host: Host, num_instants: int) -> Seen:
    """Freeze one worker after another at random instants, and compare all bytes when it wakes."""
    random = Random(num_instants)
    seen = Seen()
    for number in range(num_instants):
        await asyncio.sleep(random.uniform(0.05, 0.25))
        await _freeze_and_wake_one(host, host.victims[number % len(host.victims)], seen)
    return seen


async def _freeze_and_wake_one(host: Host, victim: Process, seen: Seen) -> None:
    victim.freeze()
    generations = list(host.arena.generations)
    await host.until_books(lambda books: victim.worker_id not in books.num_leases)
    await asyncio.sleep(_PRESSURE_S)
    seen.num_reused += _num_different(generations, list(host.arena.generations))
    _wake(host, victim, await host.books(), seen)
    # It learns that its leases are lost, and proves that it stopped.
    await host.until_books(lambda books: victim.worker_id not in books.quarantined)


def _wake(host: Host, victim: Process, books: Books, seen: Seen) -> None:
    """Let one process run alone for a moment; write down which bytes it changed."""
    with all_frozen([each for each in host.processes.running if each is not victim]):
        before = host.checksums()
        victim.wake()
        time.sleep(_AWAKE_S)
        after = host.checksums()
    changed = {block_id for block_id, sum_ in enumerate(before) if sum_ != after[block_id]}
    seen.num_in_step += bool(changed)
    seen.num_quarantined += len(books.quarantined.get(victim.worker_id, ()))
    if others := changed - books.writable(victim.worker_id):
        seen.trespasses.append(f"{victim.name} wrote into {sorted(others)}")


async def _check_all_is_well(host: Host, num_instants: int) -> None:
    books = await host.asking.idle_audit()
    assert [] == books.get("problems", [])
    assert (0, 0, 0) == tuple(books[f"num_{each}"] for each in ("quarantined", "leases", "granted"))
    assert _NUM_BLOCKS == books["num_free"] + books["num_cached"]
    assert [] == host.crowd.wrong
    assert host.crowd.num_told_twice <= num_instants
    assert host.crowd.num_asked == host.crowd.outcomes.total()
    assert set(host.crowd.outcomes) <= _CLEAR, host.crowd.outcomes
    assert host.crowd.outcomes["length"] > host.crowd.num_asked / 2
    assert "kv_mismatch" not in host.processes.log


@contextlib.asynccontextmanager
async def _host(url: str, directory: Path, *kv_options: str) -> AsyncIterator[Host]:
    processes = Processes(
        url,
        directory,
        KV_BLOCKS=_NUM_BLOCKS,
        LEASE_MS=_LEASE_MS,
        FAKE_STEP_MS=_STEP_MS,
        NUM_GRANTED_BLOCKS=4,
        TOKEN_BUDGET=64,
    )
    kv_command = [sys.executable, "-P", kv_process.__file__, *kv_options]
    try:
        processes.start("kv", "kv", kv_command)
        processes.start("scheduler", "scheduler")
        names = ("decode-1", "prefill-1", "decode-2")
        victims = [processes.start(name, name.partition("-")[0]) for name in names]
        await asyncio.to_thread(processes.wait_ready)
        (path,) = old_arenas(processes.arena_dir)
        arena = Arena.open(path, (await asyncio.to_thread(open_model, processes.kv_config)).layout)
        async with gathered(url, _NUM_BLOCKS, _ANSWER_S) as (crowd, asking):
            yield Host(processes, asking, crowd, arena, victims)
        arena.close()
        await asyncio.to_thread(processes.stop)
    finally:
        processes.close()


@contextlib.asynccontextmanager
async def _load(host: Host) -> AsyncIterator[None]:
    """Keep so many requests running; those that run at the end are answered."""
    is_over = asyncio.Event()
    random = Random(1)

    async def ask_until_over() -> None:
        while not is_over.is_set():
            await host.crowd.ask(random.randrange(1, 300), random.randrange(8, 120))

    async with asyncio.TaskGroup() as group:
        for _ in range(_NUM_TOGETHER):
            group.create_task(ask_until_over())
        try:
            yield
        finally:
            is_over.set()


def _num_different(some: list[int], others: list[int]) -> int:
    return sum(each != other for each, other in zip(some, others, strict=True))
