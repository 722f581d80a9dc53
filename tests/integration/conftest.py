"""Fixtures of the tests that run in memory and, marked `nats`, on a real server."""

import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.run_directory import default_base, sweep
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.model.store import resolve_model
from slipstream.shared.model.tokenizer import Tokenizer

from .authority import Authority
from .command_line import FAKE, SLIPSTREAM
from .service_stack import ALL, Client, ServiceStack
from .worker_pair import Hosted

Connect = Callable[[], Awaitable[Bus]]
Start = Callable[..., Awaitable[ServiceStack]]


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
def authority(tmp_path: Path) -> Authority:
    """One that signs certificates."""
    return Authority(tmp_path / "authority")


@pytest.fixture
def subject() -> str:
    """A subject that no other test uses."""
    return f"test.{secrets.token_hex(6)}"


@pytest.fixture
async def start(nats_server: Any, tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts services, all of them unless some are named."""
    stacks = []

    async def make(*roles: str, **settings: dict[str, Any]) -> ServiceStack:
        stacks.append(ServiceStack(nats_server.url, tmp_path, **settings))
        return await stacks[-1].start(*(roles or ALL))

    yield make
    for stack in stacks:
        await stack.stop()


@pytest.fixture
def client(nats_bus: NatsBus) -> Client:
    return Client(nats_bus)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    cache_dir = tmp_path_factory.mktemp("cache")
    return Tokenizer(resolve_model("fake", cache_dir, report=lambda _line: None))


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
async def hosted(
    nats_server: Any,
    nats_bus: NatsBus,
    tmp_path: Path,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Hosted]:
    monkeypatch.setattr("slipstream.shared.worker.report_book.NUM_REPEATS", 1000)
    stack = ServiceStack(nats_server.url, tmp_path, **settings)
    await stack.start("kv", "prefill", "decode")
    made = Hosted(stack, nats_bus)
    await nats_bus.subscribe(made.inbox, made.take)
    yield made
    await stack.stop()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of ours or of OpenTelemetry set by whoever runs the tests."""
    foreign = ("SLIPSTREAM_", "OTEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "SLIPSTREAM_CACHE_DIR": str(tmp_path / "cache")}


@pytest.fixture
def up(environment: dict[str, str], tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*SLIPSTREAM, "up", "--port", "0", "--http-port", "0", "--scheduler", "1", *FAKE],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            umask=0,  # what is private must be so without its help
        )
    with process:
        yield process
        process.terminate()
        try:
            process.wait(10)
        finally:
            process.kill()
            # What a supervisor leaves that a test has killed.
            sweep(default_base())
