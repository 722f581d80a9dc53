"""Fixtures of the tests that run in memory and, marked `nats`, on a real server."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.bus.nats_bus import NatsBus

Connect = Callable[[], Awaitable[Bus]]


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.nats)])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """A function that makes one more client of the same server."""
    made: list[Bus] = []
    broker = MemoryBroker()
    url = request.getfixturevalue("nats_server").url if request.param == "nats" else ""

    async def make() -> Bus:
        bus: Bus = await NatsBus.connect(url, "test") if url else MemoryBus(broker)
        made.append(bus)
        return bus

    yield make
    for bus in made:
        await bus.close()


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    return await connect()


@pytest.fixture
def subject() -> str:
    """A subject that no other test uses."""
    return f"test.{secrets.token_hex(6)}"
