"""What a real server, or the way to it, keeps from its clients: answers, permissions, storage."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.shared.bus import nats_bus as nats_bus_module
from slipstream.shared.bus import nats_watch
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import WORKERS_BUCKET
from slipstream.shared.errors import (
    ConfigurationError,
    DeadlineExceededError,
    DisconnectedError,
    NotPermittedError,
)
from slipstream.shared.messages.generate import Completion

from .service_stack import Client, ServiceStack, until
from .tcp_proxy import Direction, TcpProxy

pytestmark = pytest.mark.nats

LIMITED = """
authorization {
  users: [{
    user: limited, password: secret
    permissions: { publish: { deny: "test.mute" }, subscribe: { deny: "test.deaf" } }
  }]
}
"""


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_bus_module, "RECONNECT_WAIT_S", 0.05)
    monkeypatch.setattr(nats_bus_module, "FLUSH_S", 0.1)
    monkeypatch.setattr(nats_watch, "LOOK_S", 0.05)


@pytest.fixture
def reconfigure(own_nats_server: Any, tmp_path: Path) -> Callable[[str], str]:
    """A function that has the server started anew with more settings."""

    def start(settings: str) -> str:
        own_nats_server.stop()
        (tmp_path / "nats.conf").write_text(settings, encoding="utf-8")
        own_nats_server.start()
        url: str = own_nats_server.url
        return url

    return start


@pytest.fixture
async def proxy(own_nats_server: Any) -> AsyncIterator[TcpProxy]:
    made = await TcpProxy(own_nats_server.url).start()
    yield made
    await made.stop()


@pytest.fixture
async def behind(proxy: TcpProxy) -> AsyncIterator[NatsBus]:
    """A client behind the proxy, which answers itself."""
    bus = await NatsBus.connect(proxy.url, "behind")

    async def answer(message: Incoming) -> None:
        await bus.publish(message.reply, message.payload)

    await bus.subscribe("test.echo", answer)
    await bus.flush()
    yield bus
    await bus.close()


async def echoed(bus: NatsBus) -> bytes:
    async with asyncio.timeout(20):
        while True:
            try:
                return (await bus.request("test.echo", b"here", timeout_s=1)).payload
            except DeadlineExceededError:
                continue


async def publish_much(bus: NatsBus) -> None:
    for _ in range(100):
        await bus.publish("test.held", bytes(1024 * 1024))


def events(logs: Any) -> list[str]:  # Any: lines, as structlog has them
    return [line["event"] for line in logs]


async def test_silence_is_noticed_and_the_late_answers_deafen_nobody(
    proxy: TcpProxy, behind: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nats-py's reader ends by the answer to a ping that was given up."""
    monkeypatch.setattr(nats_watch, "ANSWER_S", 0.3)
    monkeypatch.setattr(nats_watch, "_MAX_NUM_MISSES", 1000)
    with capture_logs() as logs:
        proxy.stall()
        await until(lambda: not behind.connection.is_up)
        stopped = behind.connection.now()
        with pytest.raises(DeadlineExceededError):
            await behind.flush(0.1)
        await asyncio.sleep(0.1)
        assert stopped == behind.connection.now()
        proxy.mend()
        await until(lambda: behind.connection.is_up)

    assert b"here" == await echoed(behind)
    assert (0, 1) == (behind.num_reconnects, behind.connection.num_returns)
    assert 1 == events(logs).count("nats_silent")


@pytest.mark.parametrize(
    "way", [None, "to_client", pytest.param("to_server", marks=pytest.mark.slow)]
)
async def test_a_way_that_stays_silent_is_given_up(
    proxy: TcpProxy, behind: NatsBus, way: Direction | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when what was written before can't be sent, and nothing more can be held back."""
    monkeypatch.setattr(nats_watch, "ANSWER_S", 0.1)
    with capture_logs() as logs:
        if way is None:
            proxy.stall()
        else:
            proxy.drop(way)
        await until(lambda: not behind.connection.is_up)
        if way is None:
            with pytest.raises(DisconnectedError):
                await publish_much(behind)
        await until(lambda: "nats_disconnected" in events(logs))
        proxy.mend()
        await until(lambda: behind.num_reconnects == 1)

    assert b"here" == await echoed(behind)
    assert "nats_given_up" in events(logs)


async def test_what_is_not_permitted_is_named(reconfigure: Callable[[str], str]) -> None:
    url = reconfigure(LIMITED).replace("nats://", "nats://limited:secret@")
    bus = await NatsBus.connect(url, "test")

    async def take(_message: Incoming) -> None:
        """Nothing comes."""

    with capture_logs() as logs:
        with pytest.raises(NotPermittedError, match=r"publish on test\.mute"):
            await bus.request("test.mute", b"", timeout_s=0.5)
        with pytest.raises(NotPermittedError):
            await bus.publish("test.mute", b"")
        bus.check_listening()
        await bus.subscribe("test.deaf", take)
        await bus.flush()
        with pytest.raises(NotPermittedError, match=r"listen on test\.deaf"):
            bus.check_listening()
    await bus.close()

    denied = [line for line in logs if line["event"] == "nats_permission_denied"]
    assert [("publish", "test.mute"), ("subscription", "test.deaf")] == [
        (line["verb"], line["subject"]) for line in denied
    ]


async def test_a_server_without_headers_is_refused(reconfigure: Callable[[str], str]) -> None:
    url = reconfigure("no_header_support: true")
    with pytest.raises(ConfigurationError, match=r"no message headers.*2\.11"):
        await NatsBus.connect(url, "test")


async def test_the_registry_is_made_anew_when_it_was_deleted(own_nats_server: Any) -> None:
    bus = await NatsBus.connect(own_nats_server.url, "test")
    registry = bus.registry()
    await registry.put("worker", b"1")
    await bus.client.jetstream().delete_stream(f"KV_{WORKERS_BUCKET}")
    with pytest.raises(DeadlineExceededError, match="registry"):
        await registry.put("worker", b"2")
    await registry.put("worker", b"3")
    entries = await registry.entries()
    await bus.close()

    assert {"worker": b"3"} == entries


@pytest.mark.parametrize("is_full", [False, True])
async def test_requests_are_served_without_room_for_anything(
    own_nats_server: Any, reconfigure: Callable[[str], str], tmp_path: Path, *, is_full: bool
) -> None:
    """Workers are known by their reports; the registry is for who comes later."""
    own_nats_server._has_jetstream = False
    full = f'jetstream {{ store_dir: "{tmp_path}", max_mem: 1, max_file: 1 }}'
    url = reconfigure(full if is_full else "")
    stack = ServiceStack(url, tmp_path, scheduler={"max_num_submissions": 0})
    bus = await NatsBus.connect(url, "client")
    with capture_logs() as logs:
        await stack.start("scheduler", "kv", "prefill", "decode")
        answer = await Client(bus).ask("Hello", max_tokens=4, ignore_eos=True)
        await stack.stop()
    await bus.close()

    assert isinstance(answer, Completion)
    num_told = events(logs).count("record_not_put")
    assert 0 < num_told <= 3, "a line a worker, not one every two seconds"


async def test_a_server_that_is_about_to_go_is_named(own_nats_server: Any) -> None:
    bus = await NatsBus.connect(own_nats_server.url, "test")
    with capture_logs() as logs:
        os.kill(own_nats_server._process.pid, signal.SIGUSR2)
        await until(lambda: "nats_lame_duck" in events(logs))
    own_nats_server._process.kill()  # it would take its time
    await bus.close(0.1)


async def test_who_is_too_slow_is_named_once(
    own_nats_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_bus_module, "PENDING_BYTES", 1000)
    bus = await NatsBus.connect(own_nats_server.url, "test")

    async def take(_message: Incoming) -> None:
        """Drop it."""

    await bus.subscribe("test.flood", take)
    await bus.flush()
    with capture_logs() as logs:
        for _ in range(500):
            await bus.publish("test.flood", bytes(100))
        await bus.flush()
    await bus.close()

    slow = [line for line in logs if line["event"] == "nats_slow_consumer"]
    assert ["test.flood"] == [line["subject"] for line in slow]


async def test_who_is_hung_up_on_for_being_slow_comes_back(
    own_nats_server: Any,
    reconfigure: Callable[[str], str],
    proxy: TcpProxy,
) -> None:
    reconfigure("max_payload: 1MB\nmax_pending: 1MB")
    reader = await NatsBus.connect(proxy.url, "reader")
    writer = await NatsBus.connect(own_nats_server.url, "writer")
    num_read = 0

    async def take(_message: Incoming) -> None:
        nonlocal num_read
        num_read += 1

    await reader.subscribe("test.much", take)
    await reader.flush()
    with capture_logs() as logs:
        proxy.stall()
        for _ in range(80):
            await writer.publish("test.much", bytes(512 * 1024))
            await writer.flush(10)
        proxy.mend()
        await until(lambda: reader.num_reconnects == 1)
        num_before = num_read
        await reader.flush()
        await writer.publish("test.much", b"after")
        await until(lambda: num_read > num_before)
    await reader.close()
    await writer.close()

    assert num_before < 80
    assert "nats_disconnected" in events(logs)
