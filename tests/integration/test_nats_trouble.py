"""What a real server can do to its clients: fade, restart, be missing, refuse."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from slipstream.shared.bus import nats_bus as nats_bus_module
from slipstream.shared.bus import nats_registry as nats_registry_module
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.errors import (
    ConfigurationError,
    DeadlineExceededError,
    DisconnectedError,
    NoRespondersError,
    SlipstreamError,
)

pytestmark = pytest.mark.nats


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(autouse=True)
def quick_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_bus_module, "RECONNECT_WAIT_S", 0.05)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # nobody sets an event for it
            await asyncio.sleep(0.01)


async def ask(bus: NatsBus, subject: str) -> bytes:
    """Ask until somebody answers."""
    async with asyncio.timeout(10):
        while True:
            try:
                return (await bus.request(subject, b"", timeout_s=0.5)).payload
            except (NoRespondersError, DeadlineExceededError):
                await asyncio.sleep(0.05)


async def echo(bus: NatsBus, subject: str, queue: str = "") -> None:
    async def answer(message: Incoming) -> None:
        await bus.publish(message.reply, b"here")

    await bus.subscribe(subject, answer, queue=queue)
    await bus.flush()


async def test_registry_entry_fades_unless_it_is_written_again(
    own_nats_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_registry_module, "REGISTRY_TTL_S", 0.5)
    bus = await NatsBus.connect(own_nats_server.url, "test")
    registry = bus.registry()
    await registry.put("fades", b"1")
    entries = {}
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        await registry.put("stays", b"1")
        entries = await registry.entries()
        if "fades" not in entries:
            break
        await asyncio.sleep(0.1)
    await bus.close()

    assert {"stays": b"1"} == entries


async def test_entries_of_an_empty_registry_are_none(own_nats_server: Any) -> None:
    bus = await NatsBus.connect(own_nats_server.url, "test")
    entries = await bus.registry().entries()
    await bus.close()

    assert {} == entries


async def test_subscriptions_live_on_when_the_server_restarts(own_nats_server: Any) -> None:
    server = await NatsBus.connect(own_nats_server.url, "server")
    client = await NatsBus.connect(own_nats_server.url, "client")
    await echo(server, "test.plain")
    await echo(server, "test.queue", "group")
    before = await ask(client, "test.plain")
    own_nats_server.stop()
    own_nats_server.start()
    after = [await ask(client, "test.plain"), await ask(client, "test.queue")]
    await client.close()
    await server.close()

    assert b"here" == before
    assert [b"here", b"here"] == after
    assert (1, 1) == (server.num_reconnects, client.num_reconnects)


async def test_stopped_subscription_stays_stopped_when_the_server_restarts(
    own_nats_server: Any,
) -> None:
    """A member of a queue group that came back without a handler would swallow requests."""
    bus = await NatsBus.connect(own_nats_server.url, "test")
    seen: list[Incoming] = []

    async def take(message: Incoming) -> None:
        seen.append(message)

    subscription = await bus.subscribe("test.gone", take, queue="group")
    await bus.flush()
    own_nats_server.stop()
    await until(lambda: not bus.client.is_connected)
    await subscription.stop()
    own_nats_server.start()
    await echo(bus, "test.gone", "group")
    answers = [await ask(bus, "test.gone") for _ in range(10)]
    await bus.close()

    assert [b"here"] * 10 == answers
    assert not seen


async def test_registry_is_made_anew_when_the_server_lost_it(own_nats_server: Any) -> None:
    """The bucket lives in the server's memory; workers put their record again and again."""
    bus = await NatsBus.connect(own_nats_server.url, "test")
    registry = bus.registry()
    await registry.put("worker", b"1")
    own_nats_server.stop()
    own_nats_server.start()
    async with asyncio.timeout(15):
        while True:
            try:
                await registry.put("worker", b"2")
            except SlipstreamError:
                await asyncio.sleep(0.05)
            else:
                break
    entries = await registry.entries()
    await bus.close()

    assert {"worker": b"2"} == entries


async def test_publishing_meanwhile_is_held_back_up_to_a_limit(own_nats_server: Any) -> None:
    bus = await NatsBus.connect(own_nats_server.url, "test")
    seen: list[bytes] = []

    async def take(message: Incoming) -> None:
        seen.append(message.payload[:1])

    await bus.subscribe("test.meanwhile", take)
    await bus.flush()
    own_nats_server.stop()
    await until(lambda: not bus.client.is_connected)
    await bus.publish("test.meanwhile", b"1")
    with pytest.raises(DisconnectedError, match=r"test\.meanwhile"):
        await bus.publish("test.meanwhile", bytes(4 * 1024 * 1024))
    with pytest.raises(DeadlineExceededError, match="connection to NATS"):
        await bus.request("test.meanwhile", b"2", timeout_s=0.1)
    own_nats_server.start()
    await until(lambda: bus.connection.is_up)
    await bus.publish("test.meanwhile", b"3")
    await until(lambda: len(seen) == 2)
    await bus.close()

    assert [b"1", b"3"] == seen, "nobody waits for what was asked in vain"


async def test_closed_bus_says_so(nats_bus: NatsBus) -> None:
    await nats_bus.close()
    with pytest.raises(DisconnectedError):
        await nats_bus.publish("test.closed", b"")
    with pytest.raises(DisconnectedError):
        await nats_bus.request("test.closed", b"", timeout_s=1)
    with pytest.raises(DisconnectedError):
        await echo(nats_bus, "test.closed")


async def test_closing_is_bounded_while_the_server_is_away(own_nats_server: Any) -> None:
    bus = await NatsBus.connect(own_nats_server.url, "test")
    await echo(bus, "test.away")
    own_nats_server.stop()
    async with asyncio.timeout(5):
        await bus.close(timeout_s=1)


async def test_missing_server_is_named_with_a_remedy(free_port: int) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=rf":{free_port} .*slipstream up"):
        await NatsBus.connect(f"nats://127.0.0.1:{free_port}", "test", connect_timeout_s=0.3)

    assert time.monotonic() - began < 3


async def test_connecting_waits_for_a_server_that_is_still_starting(own_nats_server: Any) -> None:
    own_nats_server.stop()
    connecting = asyncio.create_task(NatsBus.connect(own_nats_server.url, "test"))
    await asyncio.sleep(0.2)
    own_nats_server.start()
    bus = await connecting
    await bus.flush()
    await bus.close()
