"""A host's manager and its workers' connections: one manager a directory, an end is a proof."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.services.kv_manager import host as host_module
from slipstream.services.kv_manager import slices
from slipstream.services.kv_manager.host import Host
from slipstream.shared.config import KvConfig
from slipstream.shared.errors import ArenaError, ConfigurationError
from slipstream.shared.ids import LeaseId, RequestId, WorkerId
from slipstream.shared.kv import arena as arena_module
from slipstream.shared.kv import host_link
from slipstream.shared.kv.arena import Arena, old_arenas
from slipstream.shared.kv.host_link import SOCKET_NAME, HostLink, socket_path
from slipstream.shared.messages.kv import ArenaHello, Audit, Audited, Grant, Lease, Leased

from .service_stack import until

Open = Callable[..., Awaitable[Host]]
WORKER = WorkerId("w")


def hello(epoch: int = 1) -> ArenaHello:
    return ArenaHello(worker_id=WORKER, worker_epoch=epoch, pid=os.getpid())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
async def open_host(tmp_path: Path, directory: Path) -> AsyncIterator[Open]:
    """A function that starts a manager in the directory."""
    hosts = []

    async def start(**options: Any) -> Host:
        config = KvConfig(
            cache_dir=tmp_path / "cache",
            engine="fake",
            is_test_mode=True,
            arena_dir=directory,
            **{"num_blocks": 8, **options},
        )
        hosts.append(await Host.open(config))
        return hosts[-1]

    yield start
    for host in hosts:
        if host.arena.path.exists():
            await host.close()


def take_grant(host: Host, epoch: int = 1) -> int:
    message = Grant(
        worker_id=WORKER, worker_epoch=epoch, num_blocks=3, short_lease_id=LeaseId("short")
    )
    return len(host.book.grant(message, 0.0).blocks.block_ids)


async def test_the_end_of_a_connection_frees_what_its_worker_held(
    open_host: Open, directory: Path
) -> None:
    host = await open_host()
    link = await HostLink.connect(directory, hello(), 5)
    arena = Arena.open(directory / link.welcome.path, host.layout)
    assert (host.host_id, 9) == (arena.host_id, link.welcome.num_blocks)
    arena.close()
    assert 3 == take_grant(host)
    await link.close()
    await until(lambda: host.book.pool.num_free == 8)

    assert 0 == take_grant(host), "nothing more for a process that is gone"


async def test_only_the_process_that_ended_loses_its_blocks(
    open_host: Open, directory: Path
) -> None:
    host = await open_host()
    links = [await HostLink.connect(directory, hello(epoch), 5) for epoch in (1, 2)]
    for epoch in (1, 2):
        take_grant(host, epoch)
    await links[0].close()
    await until(lambda: host.book.pool.num_free == 5)

    assert [] == host.book.check_integrity()
    await links[1].close()


async def test_others_are_answered_while_an_audit_is_made(
    open_host: Open, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE", 1)
    host = await open_host(num_blocks=50)
    link = await HostLink.connect(directory, hello(), 5)
    audit = asyncio.create_task(host.answer(Audit()))
    num_answers = 0
    while not audit.done():
        await asyncio.sleep(0)
        num_answers += take_grant(host) >= 0

    assert num_answers > 50, "at least one a block"
    audited = await audit
    assert isinstance(audited, Audited)
    assert (50, []) == (audited.num_free, audited.problems), "as it was before the first grant"
    await link.close()


async def test_the_end_of_the_manager_is_seen_by_its_workers(
    open_host: Open, directory: Path
) -> None:
    host = await open_host()
    link = await HostLink.connect(directory, hello(), 5)
    gone = asyncio.create_task(link.wait_gone())
    await host.close()
    await asyncio.wait_for(gone, 5)

    assert not socket_path(directory).exists()
    assert not host.arena.path.exists()
    await link.close()


async def test_a_second_manager_of_a_directory_is_refused(
    open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "_LOCK_WAIT_S", 0.2)
    first = await open_host()
    with pytest.raises(ArenaError, match=r"another KV manager serves .*--arena-dir"):
        await open_host()

    assert first.arena.path.exists()


async def test_a_new_manager_waits_for_the_old_one_and_makes_a_new_arena(open_host: Open) -> None:
    first = await open_host()
    second = asyncio.create_task(open_host())
    await asyncio.sleep(0.05)
    assert not second.done()
    await first.close()
    host = await second

    assert host.epoch > first.epoch
    assert host.host_id != first.host_id


@pytest.fixture
def left_behind(directory: Path) -> Path:
    directory.mkdir()
    return directory


async def test_what_a_killed_manager_left_is_removed(open_host: Open, left_behind: Path) -> None:
    for name in ("arena.17", SOCKET_NAME):
        (left_behind / name).write_bytes(b"old")
    host = await open_host()
    link = await HostLink.connect(left_behind, hello(), 5)

    assert [host.arena.path] == old_arenas(left_behind)
    await link.close()


async def test_a_start_that_failed_lets_the_next_one_in(
    open_host: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arena_module.os, "posix_fallocate", full)
    with pytest.raises(ArenaError, match="No space left"):
        await open_host()
    monkeypatch.undo()

    assert (await open_host()).arena.path.exists()


async def test_memory_for_no_block_is_a_configuration_error(open_host: Open) -> None:
    with pytest.raises(ConfigurationError, match="--kv-memory of 100 bytes"):
        await open_host(num_blocks=None, memory_bytes=100)


async def test_a_worker_without_a_manager_is_told_what_to_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_link, "_TELL_AFTER_S", 0.05)
    with (
        capture_logs() as lines,
        pytest.raises(ArenaError, match=r"no KV manager answers at .*slipstream kv"),
    ):
        await HostLink.connect(directory, hello(), 0.3)

    told = [(line["event"], line["path"]) for line in lines]
    assert [("kv_manager_awaited", str(directory / SOCKET_NAME))] == told


async def test_a_path_too_long_for_a_socket_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="shorter --arena-dir"):
        socket_path(tmp_path / ("x" * 100))


@pytest.mark.parametrize("greeting", [b"", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00hi", b"\x05"])
async def test_a_stranger_on_the_socket_is_hung_up_on(
    open_host: Open, directory: Path, greeting: bytes
) -> None:
    host = await open_host()
    reader, writer = await asyncio.open_unix_connection(str(socket_path(directory)))
    writer.write(greeting)
    if len(greeting) < 4:
        writer.write_eof()

    assert b"" == await asyncio.wait_for(reader.read(), 5)
    writer.close()
    link = await HostLink.connect(directory, hello(), 5)
    assert 3 == take_grant(host)
    await link.close()


async def test_the_sweeper_ends_leases_on_its_own_timer(open_host: Open) -> None:
    host = await open_host(lease_ms=100)
    host.book.worker_joined(WORKER, 1)
    message = Lease(
        request_id=RequestId("r"),
        attempt=1,
        worker_id=WORKER,
        worker_epoch=1,
        num_blocks=2,
        layout=host.layout.fingerprint,
    )
    assert isinstance(host.book.lease(message, time.monotonic()), Leased)
    with capture_logs() as lines:
        sweeper = asyncio.create_task(host.sweep_loop())
        await until(lambda: len(host.book.table) == 0)
        sweeper.cancel()

    assert 6 == host.book.pool.num_free
    expired = [line for line in lines if line["event"] == "lease_expired"]
    assert [("r", 1)] == [(line["request_id"], line["attempt"]) for line in expired]
