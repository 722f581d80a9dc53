"""Blocks over NATS, a real server: the same guarantees as over TCP."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import KV_DATA
from slipstream.shared.kv.transfer.frames import pack_message
from slipstream.shared.kv.transfer.messages import Ask, FetchBlocks
from slipstream.shared.kv.transfer.nats import NatsPlane, NatsServer
from slipstream.shared.kv.transfer.nats_server import WINDOW
from slipstream.shared.kv.transfer.plane import (
    TransferBrokenError,
    TransferRefusedError,
    TransferTimeoutError,
)

from .transfer_pair import Link, Places, StandInSource, identity

pytestmark = pytest.mark.nats

NUM_BLOCKS = 10
BLOCK_BYTES = 600_001  # three chunks each
ORDER = [*range(NUM_BLOCKS - 1, 0, -2), *range(0, NUM_BLOCKS, 2)]


@pytest.fixture
def source() -> StandInSource:
    return StandInSource(NUM_BLOCKS, BLOCK_BYTES, f"host-{secrets.token_hex(6)}")


@pytest.fixture
async def server(source: StandInSource, nats_server: Any) -> AsyncIterator[NatsServer]:
    server = await NatsServer.start(source, nats_server.url)
    yield server
    await server.stop()


@pytest.fixture
async def plane(nats_server: Any) -> AsyncIterator[NatsPlane]:
    plane = await NatsPlane.connect(identity("receiver", BLOCK_BYTES), nats_server.url)
    yield plane
    await plane.close()


@pytest.fixture
def places() -> Places:
    return Places(NUM_BLOCKS, BLOCK_BYTES)


@pytest.fixture
def is_hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nats", "nats_server"):
        monkeypatch.setattr(f"slipstream.shared.kv.transfer.{module}.STALL_S", 0.3)


def broker_of(nats_server: Any) -> str:
    return urlsplit(nats_server.url).netloc


@pytest.mark.parametrize("num_questions", [0, 1, 2])
async def test_stale_block_is_refused(
    source: StandInSource,
    server: NatsServer,
    plane: NatsPlane,
    places: Places,
    num_questions: int,
) -> None:
    """Before it is asked for, before it is sent, and after that."""

    def hand_out(number: int) -> None:
        if number == num_questions:
            source.generations[ORDER[-1]] += 1

    source.on_question = hand_out
    hand_out(0)
    request = source.request(ORDER)
    with pytest.raises(TransferRefusedError, match="stale_block"):
        await plane.fetch(server.address, request, places.into, 5)


@pytest.mark.usefixtures("is_hasty")
async def test_cut_connection_resumes_with_the_missing_blocks_only(
    source: StandInSource, server: NatsServer, nats_server: Any, places: Places
) -> None:
    async with Link(cut_after=5 * BLOCK_BYTES).to(broker_of(nats_server)) as link:
        plane = await NatsPlane.connect(identity("receiver", BLOCK_BYTES), f"nats://{link.address}")
        fetched = await plane.fetch(server.address, source.request(ORDER), places.into, 8)
        await plane.close()

    assert places.hold(source, ORDER)
    assert 1 <= fetched.num_resumes
    assert ORDER[4:] == source.asked[-1]


@pytest.mark.usefixtures("is_hasty")
async def test_damaged_block_is_asked_for_again(
    source: StandInSource, server: NatsServer, nats_server: Any, places: Places
) -> None:
    async with Link(flip_at=5 * BLOCK_BYTES).to(broker_of(nats_server)) as link:
        plane = await NatsPlane.connect(identity("receiver", BLOCK_BYTES), f"nats://{link.address}")
        fetched = await plane.fetch(server.address, source.request(ORDER), places.into, 5)
        await plane.close()

    assert places.hold(source, ORDER)
    assert 1 == fetched.num_resumes
    assert [ORDER[4]] == source.asked[-1]


async def test_deadline_ends_a_transfer_that_nobody_answers(
    source: StandInSource, plane: NatsPlane, places: Places, nats_bus: NatsBus
) -> None:
    async def say_nothing(_message: Incoming) -> None:
        return

    await nats_bus.subscribe(KV_DATA.subject(host_id="mute"), say_nothing)
    await nats_bus.flush()
    started = time.monotonic()
    with pytest.raises(TransferTimeoutError, match=r"0\.3 s"):
        await plane.fetch("mute", source.request(ORDER), places.into, 0.3)

    assert time.monotonic() - started < 1


async def test_nobody_there_is_tried_until_the_deadline(
    source: StandInSource, plane: NatsPlane, places: Places
) -> None:
    with pytest.raises(TransferBrokenError, match="nobody listens"):
        await plane.fetch("nobody", source.request(ORDER), places.into, 0.2)


async def test_cancelled_transfer_writes_nothing_any_more(
    source: StandInSource, server: NatsServer, nats_server: Any, places: Places
) -> None:
    async with Link(stall_at=5 * BLOCK_BYTES).to(broker_of(nats_server)) as link:
        plane = await NatsPlane.connect(identity("receiver", BLOCK_BYTES), f"nats://{link.address}")
        fetch = asyncio.create_task(
            plane.fetch(server.address, source.request(ORDER), places.into, 5)
        )
        await link.stalled.wait()
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        left = bytes(places.memory)
        link.go_on.set()
        async with asyncio.timeout(1):
            while server._streams:
                await asyncio.sleep(0.01)  # the server hears that we have gone
        await plane.close()

    assert any(left)
    assert left == places.memory


@pytest.mark.usefixtures("is_hasty")
async def test_sender_never_runs_ahead_of_its_credit(
    source: StandInSource, server: NatsServer, nats_bus: NatsBus
) -> None:
    """A receiver that grants nothing gets one window, and is then given up."""
    heard: list[Incoming] = []

    async def hear(message: Incoming) -> None:
        heard.append(message)

    request = source.request(ORDER)
    inbox = nats_bus.new_inbox()
    await nats_bus.subscribe(inbox, hear)
    question = FetchBlocks("t", request.lease_id, ORDER, list(request.generations), 5000)
    ask = Ask(identity("receiver", BLOCK_BYTES).hello(), question)
    await nats_bus.publish(KV_DATA.subject(host_id=server.address), pack_message(ask), reply=inbox)
    async with asyncio.timeout(3):
        while len(heard) < WINDOW or server._streams:
            await asyncio.sleep(0.02)

    assert WINDOW == len(heard)


async def test_closed_plane_ends_its_transfers(
    source: StandInSource, nats_server: Any, places: Places, nats_bus: NatsBus
) -> None:
    plane = await NatsPlane.connect(identity("receiver", BLOCK_BYTES), nats_server.url)
    asked = asyncio.Event()

    async def note(_message: Incoming) -> None:
        asked.set()

    await nats_bus.subscribe(KV_DATA.subject(host_id="mute-too"), note)
    await nats_bus.flush()
    fetch = asyncio.create_task(plane.fetch("mute-too", source.request(ORDER), places.into, 5))
    await asked.wait()
    await plane.close()
    with pytest.raises(TransferBrokenError, match="closed"):
        async with asyncio.timeout(1):
            await fetch


async def test_many_transfers_at_once(source: StandInSource, nats_server: Any) -> None:
    """More than the plane runs at a time, and more streams than the server takes."""
    server = await NatsServer.start(source, nats_server.url, max_num_streams=2)
    plane = await NatsPlane.connect(
        identity("receiver", BLOCK_BYTES), nats_server.url, max_num_fetches=4
    )
    all_places = [Places(2, BLOCK_BYTES) for _ in range(16)]
    orders = [[number % NUM_BLOCKS, (number + 3) % NUM_BLOCKS] for number in range(16)]
    await asyncio.gather(
        *(
            plane.fetch(server.address, source.request(order), places.into, 8)
            for order, places in zip(orders, all_places, strict=True)
        )
    )
    await plane.close()
    await server.stop()

    assert all(places.hold(source, order) for order, places in zip(orders, all_places, strict=True))
