"""A client that knows NATS, JSON and msgpack, and nothing of our own client."""

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from slipstream.services.cli.connection import operator_access
from slipstream.services.cli.nats_server import own_keys
from slipstream.shared.bus.permissions import NatsRole
from slipstream.shared.bus.subjects import CANCEL, GENERATE, KV, REPORT
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.reports import WorkerReport

Hear = Callable[[Msg], Awaitable[None]]

ANSWER_S = 60.0
SETTLE_S = 20.0
_HELD = ("leases", "granted", "leased", "committed", "quarantined")
MSGPACK_MAPS = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})

Encoding = Literal["json", "msgpack"]
Body = Mapping[str, Any] | bytes  # Any: fields of a request, right and wrong ones
Answer = dict[str, Any]  # Any: JSON


@dataclass
class Stream:
    """Everything that came into one inbox."""

    messages: list[Answer] = field(default_factory=list)

    @property
    def frames(self) -> list[Answer]:
        """The frames that hold tokens."""
        return [each for each in self.messages if each["type"] == "token_frame"]

    @property
    def endings(self) -> list[Answer]:
        """What says that there is no more to come; one in a sound stream."""
        return [each for each in self.messages if each["type"] in ("finished", "failed")]

    @property
    def ending(self) -> Answer:
        """The one ending."""
        (ending,) = self.endings
        return ending

    @property
    def token_ids(self) -> list[int]:
        """The tokens, each index once."""
        ids: list[int] = []
        for frame in self.frames:
            assert frame["index"] <= len(ids), f"a gap before {frame['index']}"
            if _is_new(frame):
                ids[frame["index"] :] = frame["token_ids"]
        return ids

    @property
    def text(self) -> str:
        """The text, each character once."""
        text = ""
        for frame in self.frames:
            assert frame["text_offset"] <= len(text), f"a gap before {frame['text_offset']}"
            if _is_new(frame):
                text = text[: frame["text_offset"]] + frame["text"]
        return text

    @property
    def logprobs(self) -> list[Any] | None:  # Any: as JSON has them
        """Those of the tokens, each index once; None when there are none."""
        found: list[Any] = []
        for frame in self.frames:
            if _is_new(frame):
                found[frame["index"] :] = frame.get("logprobs") or []
        return found or None

    def choice(self, number: int) -> "Stream":
        """Return what belongs to one choice."""
        return Stream([each for each in self.messages if each.get("choice", 0) == number])


class Client:
    """One connection to a stack."""

    def __init__(self, connection: NatsClient) -> None:
        self.connection = connection
        self._host_id: str | None = None

    async def close(self) -> None:
        """Hang up; nobody listens on the inboxes from now on."""
        await self.connection.close()

    async def ask(
        self,
        body: Body,
        *,
        encoding: Encoding = "json",
        subject: str = GENERATE.subject(),
        timeout_s: float = ANSWER_S,
    ) -> Answer:
        """Send a request and return its one answer, decoded."""
        payload = encode(body, encoding)
        answer = await self.connection.request(subject, payload, timeout=timeout_s)  # type: ignore[arg-type] # nats-py says int, and takes a float
        return decode(answer.data)

    async def gather(self, *bodies: Body) -> list[Answer]:
        """Send requests at the same time; return their answers in order."""
        return list(await asyncio.gather(*(self.ask(body) for body in bodies)))

    async def stream(
        self, body: Mapping[str, Any], *, encoding: Encoding = "json", timeout_s: float = ANSWER_S
    ) -> Stream:
        """Return a whole stream, of all choices."""
        found = Stream()
        async for message in self.messages(body, encoding=encoding, timeout_s=timeout_s):
            found.messages.append(message)
        return found

    async def messages(
        self, body: Mapping[str, Any], *, encoding: Encoding = "json", timeout_s: float = ANSWER_S
    ) -> AsyncIterator[Answer]:
        """Yield the messages of a stream as they come, up to the ending of the last choice."""
        inbox = self.connection.new_inbox()
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        subscription = await self.connection.subscribe(inbox, cb=arrived.put)
        num_left = body.get("n", 1)
        try:
            payload = encode({**body, "stream": True}, encoding)
            await self.connection.publish(GENERATE.subject(), payload, reply=inbox)
            async with asyncio.timeout(timeout_s):
                while num_left > 0:
                    message = decode((await arrived.get()).data)
                    yield message
                    num_left -= message["type"] in ("finished", "failed")
        finally:
            await subscription.unsubscribe()

    async def cancel(self, request_id: str) -> Answer:
        """Cancel a request."""
        subject = CANCEL.subject(request_id=request_id)
        body = {"type": "cancel", "request_id": request_id}
        return await self.ask(body, subject=subject, timeout_s=5)

    async def audit(self, host_id: str | None = None) -> Answer:
        """Return the books of a host's KV manager: of the one that reports now."""
        subject = KV.subject(host_id=host_id or await self.host_id(), verb="audit")
        return await self.ask({"type": "audit", "with_leases": True}, subject=subject, timeout_s=5)

    async def idle_audit(self, timeout_s: float = SETTLE_S, host_id: str | None = None) -> Answer:
        """Return the books as soon as nobody holds a block, or as they stand when it stays so."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            books = await self.audit(host_id)
            if not any(books[f"num_{each}"] for each in _HELD) or time.monotonic() > deadline_s:
                return books
            await asyncio.sleep(0.05)

    async def host_id(self, *, is_fresh: bool = False) -> str:
        """Return the host of the KV manager that reports now."""
        if self._host_id is None or is_fresh:
            self._host_id = (await self.report_of("kv")).host_id
        assert self._host_id is not None, "a KV manager has a host"
        return self._host_id

    async def host_ids(self, num_hosts: int) -> set[str]:
        """Return so many hosts, as their KV managers report now."""
        found: set[str] = set()
        async with asyncio.timeout(SETTLE_S):
            while len(found) < num_hosts:
                found.add(await self.host_id(is_fresh=True))
        return found

    async def report_of(self, role: str) -> WorkerReport:
        """Return the next report of a role."""
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        subscription = await self.connection.subscribe(REPORT.wildcard, cb=arrived.put)
        try:
            async with asyncio.timeout(SETTLE_S):
                while True:
                    report = decoder_of(WorkerReport).decode((await arrived.get()).data)
                    if report.role == role:
                        return report
        finally:
            await subscription.unsubscribe()


def _is_new(frame: Answer) -> bool:
    """Tell a frame from a sign of life, which may be the scheduler's, and late."""
    return bool(frame["token_ids"] or frame["text"])


async def listening(url: str, role: NatsRole, cb: Hear, *subjects: str) -> NatsClient:
    """Listen in as one of the services, where it may listen."""
    keys = own_keys(url)
    assert keys is not None, f"no stack of ours is at {url}"
    connection = await nats.connect(url, **keys.access(role).connect_options(url))
    for subject in subjects:
        await connection.subscribe(subject, cb=cb)
    await connection.flush()
    return connection


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    """A client with the operator's rights while a block runs."""
    found = Client(await nats.connect(url, **operator_access(url).connect_options(url)))
    try:
        yield found
    finally:
        await found.close()


def encode(body: Body, encoding: Encoding = "json") -> bytes:
    """Return the bytes of a request; bytes are sent as they are."""
    if isinstance(body, bytes):
        return body
    return msgspec.json.encode(body) if encoding == "json" else msgspec.msgpack.encode(body)


def encoding_of(payload: bytes) -> Encoding:
    """Tell how an answer was encoded."""
    return "msgpack" if payload[0] in MSGPACK_MAPS or payload[0] in range(0x90, 0xA0) else "json"


def decode(payload: bytes) -> Answer:
    """Return an answer as a map, whichever encoding it has."""
    if encoding_of(payload) == "json":
        return msgspec.json.decode(payload, type=Answer)
    return _plain(msgspec.msgpack.decode(payload))


def token_ids_of(answer: Answer) -> list[int]:
    """Return the tokens of a plain answer."""
    assert answer["type"] == "completion", answer
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def text_of(answer: Answer) -> str:
    """Return the text of a plain answer."""
    assert answer["type"] == "completion", answer
    text: str = answer["choices"][0]["text"]
    return text


# A frame is an array in msgpack: its names in order, as the wire's golden bytes fix them.
_FRAME = (
    *("type", "request_id", "attempt", "index", "text_offset", "token_ids", "text"),
    *("choice", "logprobs"),
)


def _plain(value: Any) -> Any:  # Any: whatever msgpack holds
    """Return frames as maps, and packed token ids as lists."""
    if isinstance(value, list) and value and value[0] == "token_frame":
        value = dict(zip(_FRAME, value, strict=False))
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return list(struct.unpack(f"<{len(value) // 4}I", value))
    return value
