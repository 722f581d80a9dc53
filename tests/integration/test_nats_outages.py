"""Streams that run while NATS goes away, or the way to it: each text whole, nothing lost by it."""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.client import AsyncClient
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.errors import DeadlineExceededError

from .plain_reader import PlainReader
from .service_stack import ServiceStack, until, until_empty
from .tcp_proxy import TcpProxy

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

NUM_STREAMS = 16
TOKENS = {"max_tokens": 60, "ignore_eos": True, "temperature": 1.0}
PACE: dict[str, Any] = {"fake": FakeEngineConfig(step_ms=20), "num_seats": NUM_STREAMS}
LONGEST_S = 90.0
# What a service says where it gives something up.
LOSSES = {"worker_dead", "lease_expired", "lease_lost", "client_gone", "attempt_failed"}


@dataclass
class Crowd:
    """Sixteen readers: half of them our client, half of them plain."""

    client: AsyncClient
    plain: list[PlainReader]
    said: dict[int, str] = field(default_factory=dict)  # by the number of a stream, as it comes
    tasks: "list[asyncio.Task[str]]" = field(default_factory=list)

    @classmethod
    async def gather(cls, url: str) -> "Crowd":
        """Connect."""
        plain = [await PlainReader.connect(url) for _ in range(NUM_STREAMS // 2)]
        return cls(AsyncClient(url, timeout_s=LONGEST_S), plain)

    def begin(self) -> None:
        """Ask for all streams."""
        self.said = {}
        ours = [self._ours(number) for number in range(NUM_STREAMS // 2)]
        plain = [
            reader.read(prompt_of(number), LONGEST_S, **TOKENS, seed=number)
            for number, reader in enumerate(self.plain, start=NUM_STREAMS // 2)
        ]
        self.tasks = [asyncio.create_task(each) for each in (*ours, *plain)]

    @property
    def have_all_begun(self) -> bool:
        return len(self.said) == NUM_STREAMS // 2 and all(reader.text for reader in self.plain)

    async def texts(self) -> list[str]:
        """Wait for all endings."""
        return list(await asyncio.gather(*self.tasks))

    async def close(self) -> None:
        """Hang up."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.close()
        for reader in self.plain:
            await reader.close()

    async def _ours(self, number: int) -> str:
        said = ""
        async with self.client.stream(prompt_of(number), **TOKENS, seed=number) as stream:
            async for piece in stream:
                said += piece
                self.said[number] = said
        assert stream.answer.text == said
        assert 0 == stream.num_retries, "it was resumed, not asked again"
        return said


def prompt_of(number: int) -> str:
    return f"Rider {number} follows the wheel before, in the wind that others break. " * 2


@dataclass
class Scene:
    """Services, readers, and what a stream says when nothing happens."""

    stack: ServiceStack
    crowd: Crowd
    most_quarantined: int = 0

    async def undisturbed(self) -> list[str]:
        """Return the texts of a run without trouble."""
        self.crowd.begin()
        texts = await self.crowd.texts()
        for number, reader in enumerate(self.crowd.plain):
            self.crowd.plain[number] = PlainReader(reader._connection)
        return texts

    async def begun(self) -> None:
        """Return when every stream has begun, and none has ended."""
        self.crowd.begin()
        await until(lambda: self.crowd.have_all_begun)
        assert not any(task.done() for task in self.crowd.tasks)

    async def look_for_quarantine(self) -> None:
        """Look at the blocks for ever."""
        book = self.stack.one("kv").host.book
        while True:
            num_quarantined = sum(len(each.block_ids) for each in book.table.quarantines.values())
            self.most_quarantined = max(self.most_quarantined, num_quarantined)
            await asyncio.sleep(0.02)


@pytest.fixture
async def scene(own_nats_server: Any, tmp_path: Path) -> AsyncIterator[Scene]:
    stack = ServiceStack(own_nats_server.url, tmp_path, decode=PACE)
    crowd = await Crowd.gather(own_nats_server.url)
    yield Scene(stack, crowd)
    await crowd.close()
    await stack.stop()


@pytest.fixture
async def proxy(own_nats_server: Any) -> AsyncIterator[TcpProxy]:
    made = await TcpProxy(own_nats_server.url).start()
    yield made
    await made.stop()


def events(logs: Collection[Any]) -> set[str]:  # Any: a line, as structlog has it
    return {str(line["event"]) for line in logs}


@pytest.mark.parametrize(
    ("seconds", "lease_ms"), [(2.0, 1_500), pytest.param(40.0, 30_000, marks=pytest.mark.slow)]
)
async def test_a_restart_of_nats_costs_nothing_but_time(
    scene: Scene, own_nats_server: Any, seconds: float, lease_ms: int
) -> None:
    """Each time for longer than a lease lasts."""
    scene.stack._settings["kv"] = {"lease_ms": lease_ms}
    await scene.stack.start("scheduler", "kv", "prefill", "decode")
    expected = await scene.undisturbed()
    looking = asyncio.create_task(scene.look_for_quarantine())
    with capture_logs() as logs:
        await scene.begun()
        await asyncio.to_thread(own_nats_server.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(own_nats_server.start)
        texts = await scene.crowd.texts()
    looking.cancel()

    assert expected == texts
    assert {"nats_disconnected", "nats_reconnected"} <= events(logs)
    assert not LOSSES & events(logs)
    assert 0 == scene.most_quarantined
    await until_empty(scene.stack)


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_client_whose_server_never_returns_is_told_at_its_own_deadline(
    own_nats_server: Any, tmp_path: Path, *, is_begun: bool
) -> None:
    stack = ServiceStack(own_nats_server.url, tmp_path, decode=PACE)
    client = AsyncClient(own_nats_server.url, timeout_s=1.5)
    await stack.start("scheduler", "kv", "decode")
    await client.generate("Hello", max_tokens=1)
    if not is_begun:
        await asyncio.to_thread(own_nats_server.stop)
    began = asyncio.get_running_loop().time()
    async with client.stream(prompt_of(0), max_tokens=1000, ignore_eos=True) as stream:
        if is_begun:
            assert await anext(stream)
            await asyncio.to_thread(own_nats_server.stop)
        with pytest.raises(DeadlineExceededError, match=r"no end of the answer within 1\.5 s"):
            await stream.read()
    assert asyncio.get_running_loop().time() - began < 10
    await client.close()
    for process in [each for role in ("scheduler", "decode", "kv") for each in stack.living(role)]:
        await stack.kill(process)


@pytest.mark.slow
async def test_a_decode_worker_that_is_cut_off_is_replaced(scene: Scene, proxy: TcpProxy) -> None:
    """It is declared dead; what it says when it is back changes nothing."""
    await scene.stack.start("scheduler", "kv", "prefill")
    await scene.stack.add("decode", nats_url=proxy.url)
    expected = await scene.undisturbed()
    with capture_logs() as logs:
        await scene.begun()
        proxy.stall()
        await scene.stack.add("decode")
        await asyncio.sleep(10)
        proxy.mend()
        texts = await scene.crowd.texts()

    assert expected == texts
    assert "worker_dead" in events(logs)
    assert "client_gone" not in events(logs)
    await until_empty(scene.stack, 30)


@pytest.mark.slow
async def test_a_kv_manager_that_is_cut_off_loses_no_lease(scene: Scene, proxy: TcpProxy) -> None:
    scene.stack._settings["kv"] = {"nats_url": proxy.url, "lease_ms": 5_000}
    await scene.stack.start("scheduler", "kv", "prefill", "decode")
    expected = await scene.undisturbed()
    looking = asyncio.create_task(scene.look_for_quarantine())
    with capture_logs() as logs:
        await scene.begun()
        proxy.stall()
        await asyncio.sleep(10)
        proxy.mend()
        texts = await scene.crowd.texts()
    looking.cancel()

    assert expected == texts
    # It can't be asked, so that the scheduler forgets what it holds until it reports again.
    dead = [line["dead_worker_id"] for line in logs if line["event"] == "worker_dead"]
    assert set(dead) <= {scene.stack.one("kv").worker_id}
    assert not LOSSES - {"worker_dead"} & events(logs)
    assert 0 == scene.most_quarantined
    assert "asked_by_socket" in events(logs)
    await until_empty(scene.stack)
