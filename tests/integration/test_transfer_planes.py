"""What every plane keeps: blocks come whole, from their rightful generation, or not at all."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from slipstream.shared.kv.transfer.nats import NatsPlane, NatsServer
from slipstream.shared.kv.transfer.plane import (
    PlaneIdentity,
    TransferIncompatibleError,
    TransferPlane,
    TransferRefusedError,
)
from slipstream.shared.kv.transfer.tcp import TcpPlane, TcpServer

from .transfer_pair import Places, StandInSource, identity

NUM_BLOCKS = 10
BLOCK_BYTES = 600_001  # over NATS three chunks each
ORDER = [*range(NUM_BLOCKS - 1, 0, -2), *range(0, NUM_BLOCKS, 2)]
Connect = Callable[[PlaneIdentity], Awaitable[TransferPlane]]


@pytest.fixture
def source() -> StandInSource:
    return StandInSource(NUM_BLOCKS, BLOCK_BYTES, f"host-{secrets.token_hex(6)}")


@pytest.fixture
def places() -> Places:
    return Places(NUM_BLOCKS, BLOCK_BYTES)


@pytest.fixture(params=["tcp", "tls", pytest.param("nats", marks=pytest.mark.nats)])
async def served(
    request: pytest.FixtureRequest, source: StandInSource
) -> AsyncIterator[tuple[str, Connect]]:
    """The address of a source, and how to connect to it."""
    server: TcpServer | NatsServer
    tls = None
    if request.param == "tls":
        tls = request.getfixturevalue("authority").peer("kv")
    if request.param != "nats":
        server = await TcpServer.start(source, tls=tls and tls.server)
    else:
        url = request.getfixturevalue("nats_server").url
        server = await NatsServer.start(source, url)
    planes: list[TransferPlane] = []

    async def connect(who: PlaneIdentity) -> TransferPlane:
        plane: Any
        if request.param == "nats":
            plane = await NatsPlane.connect(who, url)
        else:
            plane = TcpPlane(who, tls=tls and tls.client)
        planes.append(plane)
        return planes[-1]

    yield server.address, connect
    for plane in planes:
        await plane.close()
    await server.stop()


async def test_blocks_arrive_in_their_places(
    source: StandInSource, served: tuple[str, Connect], places: Places
) -> None:
    address, connect = served
    plane = await connect(identity("receiver", BLOCK_BYTES))
    fetched = await plane.fetch(address, source.request(ORDER), places.into, 5)

    assert places.hold(source, ORDER)
    assert (NUM_BLOCKS, NUM_BLOCKS * BLOCK_BYTES, 0) == (
        fetched.num_blocks,
        fetched.num_bytes,
        fetched.num_resumes,
    )


async def test_other_layout_is_refused_naming_both(
    source: StandInSource, served: tuple[str, Connect], places: Places
) -> None:
    address, connect = served
    plane = await connect(identity("receiver", BLOCK_BYTES, layout="layout-2"))
    with pytest.raises(TransferIncompatibleError, match=r"layout-1.*receiver.*layout-2"):
        await plane.fetch(address, source.request(ORDER), places.into, 5)

    assert [] == source.asked


async def test_unknown_lease_is_refused(
    source: StandInSource, served: tuple[str, Connect], places: Places
) -> None:
    address, connect = served
    plane = await connect(identity("receiver", BLOCK_BYTES))
    with pytest.raises(TransferRefusedError, match="unknown_lease") as caught:
        await plane.fetch(address, source.request(ORDER, "other"), places.into, 5)

    assert ("unknown_lease", "transfer_refused") == (caught.value.reason, caught.value.code)
    assert bytes(len(places.memory)) == places.memory
