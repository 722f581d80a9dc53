"""All services in one event loop, each on a connection of its own, on the fake engine."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.services.decode.service import DecodeService
from slipstream.services.draft.service import DraftService
from slipstream.services.gateway.service import GatewayService
from slipstream.services.kv_manager.service import KvService
from slipstream.services.prefill.service import PrefillService
from slipstream.services.scheduler.service import SchedulerService
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import call, call_kv
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import CANCEL, GENERATE, RESUME
from slipstream.shared.config import (
    DecodeConfig,
    DraftConfig,
    FakeEngineConfig,
    GatewayConfig,
    KvConfig,
    PrefillConfig,
    SchedulerConfig,
)
from slipstream.shared.ids import RequestId, WorkerId, new_worker_id
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import (
    Cancel,
    Cancelled,
    Completion,
    Finished,
    Resume,
    TokenFrame,
)
from slipstream.shared.messages.kv import Audit, Audited
from slipstream.shared.model.fake_runner import EOS_TOKEN_ID, next_token_id
from slipstream.shared.telemetry.tally_meter import TallyMeter
from slipstream.shared.telemetry.tracing import Tracer

# Any: the services' common protocol leaves out what tests look at.
_SERVICES: dict[str, tuple[Any, Any]] = {
    "scheduler": (SchedulerService, SchedulerConfig),
    "kv": (KvService, KvConfig),
    "prefill": (PrefillService, PrefillConfig),
    "decode": (DecodeService, DecodeConfig),
    "draft": (DraftService, DraftConfig),
    "gateway": (GatewayService, GatewayConfig),
}
_ROLES_WITH_ARENA = ("kv", "prefill", "decode")
NUM_BLOCKS = 256
WAIT_S = 15.0
ALL = ("scheduler", "kv", "draft", "prefill", "decode")
OVER_HTTP = (*ALL, "gateway")
LONG = "The wind is strong today, so ride behind me and rest a little while you can. " * 4


@dataclass(eq=False)
class Process:
    """What stands for a process: a service, its connections and its tasks."""

    role: str
    service: Any  # Any: as above
    buses: list[NatsBus]
    tasks: set["asyncio.Task[Any]"]  # Any: tasks of all kinds
    waiting: "asyncio.Task[None]"
    is_killed: bool = False


class ServiceStack:
    """Starts, looks into, kills and stops services."""

    def __init__(self, nats_url: str, directory: Path, **settings: dict[str, Any]) -> None:
        """`settings` are options by role; those under `every` go to all."""
        # Any: options of every type
        self._nats_url = nats_url
        self._directory = directory
        self._settings = settings
        self.processes: list[Process] = []

    async def start(self, *roles: str) -> "ServiceStack":
        """Start services in this order, and return when the scheduler sees the workers."""
        for role in roles:
            await self.add(role)
        return self

    async def add(self, role: str, host: str = "kv", **more: Any) -> Process:
        """
        Start one more service, on the host whose arena lies in a directory of that name.

        Any: options that only this one has, of every type.
        """
        make, config_class = _SERVICES[role]
        options: dict[str, Any] = {  # Any: as above
            "nats_url": self._nats_url,
            "cache_dir": self._directory / "cache",
            "engine": "fake",
            "is_test_mode": True,
            "fake": FakeEngineConfig(step_ms=0.2, row_us=0.0, context_token_ns=0.0),
            "drain_s": 1.0,
        }
        if role in _ROLES_WITH_ARENA:
            options["arena_dir"] = self._directory / host
        if role == "gateway":
            options["http_port"] = 0
        if role == "kv":
            options["num_blocks"] = NUM_BLOCKS
        if role == "decode" and self.living("draft"):
            options["draft_place"] = "draft"
        options |= self._settings.get("every", {}) | self._settings.get(role, {}) | more
        worker_id = new_worker_id(role)
        bus = await NatsBus.connect(options["nats_url"], worker_id)
        before = asyncio.all_tasks()
        service = make(config_class(**options), bus, Tracer(), worker_id, TallyMeter())
        await service.start()
        waiting = asyncio.create_task(service.wait())
        buses = [bus]
        if role == "decode":
            buses.append(service._parts.token_bus)
        process = Process(role, service, buses, asyncio.all_tasks() - before, waiting)
        self.processes.append(process)
        if role == "scheduler":
            await until(lambda: any(self.is_active(each) for each in self.living(role)))
        if role in ("prefill", "decode"):
            await self._until_known(worker_id)
        return process

    def one(self, role: str) -> Any:  # Any: as above
        """Return the only living service of a role."""
        (process,) = self.living(role)
        return process.service

    def living(self, role: str) -> list[Process]:
        """Return the services of a role that were not killed."""
        return [each for each in self.processes if each.role == role and not each.is_killed]

    @staticmethod
    def is_active(process: Process) -> bool:
        """Tell whether a scheduler leads."""
        return process.service._front is not None

    @property
    def active(self) -> Process:
        """The scheduler that leads."""
        (process,) = filter(self.is_active, self.living("scheduler"))
        return process

    @property
    def desk(self) -> Any:  # Any: as above
        """The active scheduler's records and queue."""
        return self.active.service._front.desk

    async def audit(self) -> Audited:
        """Return the KV manager's books."""
        host = self.one("kv").host
        (process,) = self.living("kv")
        answer = await call_kv(process.buses[0], host.host_id, Audit(with_leases=True))
        assert isinstance(answer, Audited)
        return answer

    async def kill(self, process: Process) -> None:
        """End a service as SIGKILL would: nothing leaves it any more, its connections break."""
        process.is_killed = True
        for bus in process.buses:
            bus._is_wanted = False
            bus.client._status = bus.client.DISCONNECTED  # what it still says goes nowhere
        await cancel_all([*_tasks_of(process.service), *process.tasks, process.waiting])
        for bus in process.buses:
            for subscription in bus.subscriptions:
                for task in subscription.tasks:
                    task.cancel()
            bus.client._status = bus.client.CONNECTED
            bus.client._pending.clear()
            bus.client._pending_data_size = 0
            await bus.client.close()
        if process.role == "kv":
            await process.service.host.close()
        elif process.role in _ROLES_WITH_ARENA:
            await process.service._parts.host.close()

    async def stop(self) -> None:
        """Stop what lives, workers first."""
        order = ("gateway", "draft", "decode", "prefill", "scheduler", "kv")
        for process in sorted(self.processes, key=lambda each: order.index(each.role)):
            if process.is_killed:
                continue
            await cancel_all([process.waiting])
            await process.service.stop()
            for bus in process.buses:
                await bus.close()
            process.is_killed = True

    async def _until_known(self, worker_id: WorkerId) -> None:
        for process in filter(self.is_active, self.living("scheduler")):
            fleet = process.service._front.watch._fleet
            await until(partial(fleet.has, worker_id))


def _tasks_of(service: Any) -> list["asyncio.Task[Any]"]:  # Any: as above
    parts, submissions = (getattr(service, name, None) for name in ("_parts", "_submissions"))
    return [
        *(parts.jobs._tasks.values() if parts is not None else ()),
        *(submissions.tasks if submissions is not None else ()),
    ]


async def until(is_true: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    """Return when a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not is_true():
            await asyncio.sleep(0.005)


class Client:
    """A NATS client as anybody could write it: JSON in, JSON out."""

    def __init__(self, bus: NatsBus) -> None:
        self.bus = bus

    async def ask(
        self, prompt: str, *, timeout_s: float = WAIT_S, **fields: Any
    ) -> Completion | Failed:
        """Return the one answer of a plain request. Any: fields of a request."""
        body = {"prompt": prompt, "temperature": 0, **fields}
        if fields.get("prompt_token_ids") is not None:
            del body["prompt"]
        answer = await self.bus.request(
            GENERATE.subject(), json.dumps(body).encode(), timeout_s=timeout_s
        )
        message = decoder_of(ClientAnswer).decode(answer.payload)
        assert isinstance(message, Completion | Failed)
        return message

    async def stream_to(self, inbox: str, prompt: str, **fields: Any) -> None:
        """Send a streamed request whose answers go to an inbox. Any: fields of a request."""
        body = {"prompt": prompt, "temperature": 0, "stream": True, **fields}
        await self.bus.publish(GENERATE.subject(), json.dumps(body).encode(), reply=inbox)

    async def resume(self, request_id: RequestId, inbox: str) -> None:
        """Have a stream sent again, from its beginning."""
        message = Resume(request_id=request_id, reply=inbox)
        await self.bus.publish(RESUME.subject(request_id=request_id), encode(message, "json"))

    async def cancel(self, request_id: RequestId) -> Cancelled:
        """Cancel a request."""
        answer = await call(
            self.bus, CANCEL, Cancel(request_id=request_id), timeout_s=5, request_id=request_id
        )
        assert isinstance(answer, Cancelled)
        return answer

    @contextlib.asynccontextmanager
    async def stream(self, prompt: str, **fields: Any) -> AsyncIterator["Stream"]:
        """Send a streamed request and listen. Any: fields of a request."""
        stream = Stream(self.bus)
        subscription = await self.bus.subscribe(stream.inbox, stream.take)
        await self.stream_to(stream.inbox, prompt, **fields)
        try:
            yield stream
        finally:
            await subscription.stop()


class Stream:
    """What arrived of a stream."""

    def __init__(self, bus: NatsBus) -> None:
        self.inbox = bus.new_inbox()
        self.request_id = RequestId("")
        self.token_ids: list[int] = []
        self.text = ""
        self.endings: list[Finished | Failed] = []
        self.frames: list[TokenFrame] = []
        self._changed = asyncio.Event()

    async def take(self, incoming: Incoming) -> None:
        """Take one message, cutting what is there already by index and offset."""
        message = decoder_of(ClientAnswer).decode(incoming.payload)
        if isinstance(message, TokenFrame):
            self.frames.append(message)
            assert message.index <= len(self.token_ids), "a gap in the stream"
            assert message.text_offset <= len(self.text), "a gap in the text"
            self.token_ids += message.token_ids[len(self.token_ids) - message.index :]
            self.text += message.text[len(self.text) - message.text_offset :]
        elif isinstance(message, Finished | Failed):
            self.endings.append(message)
        self.request_id = message.request_id or self.request_id
        self._changed.set()

    async def accepted(self) -> RequestId:
        """Return the request's id as soon as it is known."""
        await self.until(lambda: self.request_id)
        return self.request_id

    async def ending(self) -> Finished | Failed:
        """Return the ending."""
        await self.until(lambda: self.endings)
        return self.endings[0]

    async def until(self, is_true: Callable[[], object]) -> None:
        """Return when what arrived fulfils a condition."""
        async with asyncio.timeout(WAIT_S):
            while not is_true():
                self._changed.clear()
                await self._changed.wait()


def oracle(prompt_token_ids: list[int], max_tokens: int, *, ignore_eos: bool = False) -> list[int]:
    """Return what the fake engine says greedily, its end-of-sequence token included."""
    token_ids = list(prompt_token_ids)
    while len(token_ids) - len(prompt_token_ids) < max_tokens:
        token_ids.append(next_token_id(token_ids))
        if token_ids[-1] == EOS_TOKEN_ID and not ignore_eos:
            break
    return token_ids[len(prompt_token_ids) :]


def is_idle(audit: Audited) -> bool:
    """Tell whether nobody holds a block: all are free, or cached for who comes next."""
    return audit.num_free + audit.num_cached == audit.num_blocks


async def until_empty(stack: ServiceStack, timeout_s: float = WAIT_S) -> None:
    """Return when nobody holds anything; say who does otherwise."""
    await until(lambda: not stack.desk.records, timeout_s)
    async with asyncio.timeout(timeout_s):
        while not is_idle(audit := await stack.audit()):
            await asyncio.sleep(0.01)

    assert [] == audit.problems
    assert (0, 0) == (len(stack.desk.load.queue), stack.desk.load.queue.num_bytes)
