"""Blocks over TCP: whole, from their rightful generation, or not at all."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest

from slipstream.shared.kv.transfer.plane import (
    TransferBrokenError,
    TransferRefusedError,
    TransferTimeoutError,
)
from slipstream.shared.kv.transfer.tcp import TcpPlane, TcpServer

from .transfer_pair import Link, Places, StandInSource, identity

NUM_BLOCKS = 24
BLOCK_BYTES = 100_001
ORDER = [*range(NUM_BLOCKS - 1, 0, -2), *range(0, NUM_BLOCKS, 2)]


@pytest.fixture
def source() -> StandInSource:
    return StandInSource(NUM_BLOCKS, BLOCK_BYTES)


@pytest.fixture
async def server(source: StandInSource) -> AsyncIterator[TcpServer]:
    server = await TcpServer.start(source)
    yield server
    await server.stop()


@pytest.fixture
async def plane() -> AsyncIterator[TcpPlane]:
    plane = TcpPlane(identity("receiver", BLOCK_BYTES))
    yield plane
    await plane.close()


@pytest.fixture
def places() -> Places:
    return Places(NUM_BLOCKS, BLOCK_BYTES)


async def test_connection_is_used_again_until_it_has_been_idle(
    source: StandInSource, server: TcpServer, places: Places
) -> None:
    plane = TcpPlane(identity("receiver", BLOCK_BYTES), idle_s=0.1)
    for _ in range(3):
        await plane.fetch(server.address, source.request(ORDER), places.into, 5)

    assert (1, 1) == (plane._pool.num_idle, len(server._connections))

    async with asyncio.timeout(5):
        while plane._pool.num_idle or server._connections:
            await asyncio.sleep(0.02)
    await plane.close()


async def test_ipv6_addresses_stand_in_brackets(
    source: StandInSource, plane: TcpPlane, places: Places
) -> None:
    try:
        server = await TcpServer.start(source, "[::1]")
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    await plane.fetch(server.address, source.request(ORDER), places.into, 5)
    await server.stop()

    assert server.address.startswith("[::1]:")
    assert places.hold(source, ORDER)


async def test_every_address_of_a_name_is_tried(
    source: StandInSource, server: TcpServer, plane: TcpPlane, places: Places
) -> None:
    """Where `localhost` is ::1 first, a server on 127.0.0.1 is found too."""
    port = server.address.rpartition(":")[2]
    await plane.fetch(f"localhost:{port}", source.request(ORDER), places.into, 5)

    assert places.hold(source, ORDER)


async def test_block_of_another_generation_is_refused(
    source: StandInSource, server: TcpServer, plane: TcpPlane, places: Places
) -> None:
    request = source.request(ORDER)
    source.generations[5] += 1
    with pytest.raises(TransferRefusedError) as caught:
        await plane.fetch(server.address, request, places.into, 5)

    assert "stale_block" == caught.value.reason


@pytest.mark.parametrize("num_questions", [1, 2], ids=["before it is sent", "while it is sent"])
async def test_block_handed_out_anew_meanwhile_is_refused(
    source: StandInSource,
    server: TcpServer,
    plane: TcpPlane,
    places: Places,
    num_questions: int,
) -> None:
    """The source looks again at each block, and at all of them at the end."""

    def hand_out(number: int) -> None:
        if number == num_questions:
            source.generations[ORDER[-1]] += 1

    source.on_question = hand_out
    with pytest.raises(TransferRefusedError) as caught:
        await plane.fetch(server.address, source.request(ORDER), places.into, 5)

    assert "stale_block" == caught.value.reason


async def test_cut_connection_resumes_with_the_missing_blocks_only(
    source: StandInSource, server: TcpServer, plane: TcpPlane, places: Places
) -> None:
    async with Link(cut_after=10 * BLOCK_BYTES).to(server.address) as link:
        fetched = await plane.fetch(link.address, source.request(ORDER), places.into, 5)

    assert places.hold(source, ORDER)
    assert (1, 2) == (fetched.num_resumes, link.num_connections)
    assert ORDER[9:] == source.asked[-1]
    assert link.num_bytes_down < (NUM_BLOCKS + 2) * BLOCK_BYTES


async def test_damaged_block_is_asked_for_again(
    source: StandInSource, server: TcpServer, plane: TcpPlane, places: Places
) -> None:
    async with Link(flip_at=10 * BLOCK_BYTES).to(server.address) as link:
        fetched = await plane.fetch(link.address, source.request(ORDER), places.into, 5)

    assert places.hold(source, ORDER)
    assert (1, 1) == (fetched.num_resumes, link.num_connections)
    assert [ORDER[9]] == source.asked[-1]


@pytest.mark.parametrize("flip_at", range(0, 400, 23))
async def test_damaged_header_or_message_is_never_believed(
    source: StandInSource, server: TcpServer, plane: TcpPlane, places: Places, flip_at: int
) -> None:
    async with Link(flip_at=flip_at).to(server.address) as link:
        await plane.fetch(link.address, source.request(ORDER), places.into, 5)

    assert places.hold(source, ORDER)


@pytest.mark.parametrize("stall_at", [0, 10 * BLOCK_BYTES], ids=["greeting", "block"])
async def test_deadline_ends_a_transfer_that_stalls(
    source: StandInSource, server: TcpServer, plane: TcpPlane, places: Places, stall_at: int
) -> None:
    started = time.monotonic()
    async with Link(stall_at=stall_at).to(server.address) as link:
        with pytest.raises(TransferTimeoutError, match=r"0\.3 s"):
            await plane.fetch(link.address, source.request(ORDER), places.into, 0.3)
        link.go_on.set()

    assert time.monotonic() - started < 1


async def test_stalled_connection_is_given_up_for_another(
    source: StandInSource,
    server: TcpServer,
    plane: TcpPlane,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipstream.shared.kv.transfer.tcp_wire.STALL_S", 0.2)
    async with Link(stall_at=10 * BLOCK_BYTES).to(server.address) as link:
        await plane.fetch(link.address, source.request(ORDER), places.into, 5)
        link.go_on.set()

    assert places.hold(source, ORDER)
    assert 2 == link.num_connections


async def test_cancelled_transfer_writes_nothing_any_more(
    source: StandInSource, server: TcpServer, plane: TcpPlane, places: Places
) -> None:
    async with Link(stall_at=10 * BLOCK_BYTES).to(server.address) as link:
        fetch = asyncio.create_task(
            plane.fetch(link.address, source.request(ORDER), places.into, 5)
        )
        await link.stalled.wait()
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        left = bytes(places.memory)
        link.go_on.set()
        await asyncio.sleep(0.1)

    assert any(left)
    assert left == places.memory
    assert not plane._in_use


async def test_nobody_there_is_tried_until_the_deadline(
    source: StandInSource, plane: TcpPlane, places: Places
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(TransferBrokenError, match=address):
        await plane.fetch(address, source.request(ORDER), places.into, 0.2)


async def test_source_that_starts_again_is_found_again(
    source: StandInSource, plane: TcpPlane, places: Places
) -> None:
    server = await TcpServer.start(source)
    await plane.fetch(server.address, source.request(ORDER), places.into, 5)
    await server.stop()
    port = int(server.address.rpartition(":")[2])
    fetch = asyncio.create_task(plane.fetch(server.address, source.request(ORDER), places.into, 5))
    await asyncio.sleep(0.1)
    places.memory[:] = bytes(len(places.memory))
    again = await TcpServer.start(source, port=port)
    await fetch
    await again.stop()

    assert places.hold(source, ORDER)


async def test_server_stops_in_the_middle_of_a_transfer(
    source: StandInSource, plane: TcpPlane
) -> None:
    order = ORDER * 15  # more than the buffers on the way hold
    places = Places(len(order), BLOCK_BYTES)
    server = await TcpServer.start(source)
    async with Link(stall_at=BLOCK_BYTES).to(server.address) as link:
        fetch = asyncio.create_task(
            plane.fetch(link.address, source.request(order), places.into, 0.5)
        )
        await link.stalled.wait()
        async with asyncio.timeout(1):
            await server.stop()
        link.go_on.set()
        with pytest.raises(TransferBrokenError):
            await fetch


async def test_closed_plane_ends_its_transfers(
    source: StandInSource, server: TcpServer, places: Places
) -> None:
    plane = TcpPlane(identity("receiver", BLOCK_BYTES))
    async with Link(stall_at=BLOCK_BYTES).to(server.address) as link:
        fetch = asyncio.create_task(
            plane.fetch(link.address, source.request(ORDER), places.into, 5)
        )
        await link.stalled.wait()
        await plane.close()
        with pytest.raises(TransferBrokenError, match="closed"):
            async with asyncio.timeout(1):
                await fetch
        link.go_on.set()


async def test_many_transfers_at_once(source: StandInSource) -> None:
    """More than the plane runs at a time, and more connections than the server takes."""
    server = await TcpServer.start(source, max_num_connections=3)
    plane = TcpPlane(identity("receiver", BLOCK_BYTES), max_num_fetches=6)
    all_places = [Places(4, BLOCK_BYTES) for _ in range(40)]
    orders = [[(number + 5 * i) % NUM_BLOCKS for i in range(4)] for number in range(40)]
    await asyncio.gather(
        *(
            plane.fetch(server.address, source.request(order), places.into, 8)
            for order, places in zip(orders, all_places, strict=True)
        )
    )
    await plane.close()
    await server.stop()

    assert all(places.hold(source, order) for order, places in zip(orders, all_places, strict=True))


async def test_large_transfer_is_asked_for_in_parts(
    source: StandInSource,
    server: TcpServer,
    plane: TcpPlane,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "slipstream.shared.kv.transfer.progress.MAX_REQUEST_BYTES", 10 * BLOCK_BYTES
    )
    fetched = await plane.fetch(server.address, source.request(ORDER), places.into, 5)

    assert places.hold(source, ORDER)
    assert 0 == fetched.num_resumes
    assert [10, 10, 10, 10, 4, 4] == [len(block_ids) for block_ids in source.asked]


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100])
async def test_garbage_ends_its_own_connection_only(
    source: StandInSource, server: TcpServer, plane: TcpPlane, places: Places, garbage: bytes
) -> None:
    host, _, port = server.address.rpartition(":")
    loop = asyncio.get_running_loop()
    with socket.create_connection((host, int(port))) as sock:
        sock.settimeout(0)
        await loop.sock_sendall(sock, garbage)
        sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert b"" == await loop.sock_recv(sock, 1)
    await plane.fetch(server.address, source.request(ORDER), places.into, 5)

    assert places.hold(source, ORDER)
