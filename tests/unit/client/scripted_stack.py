"""A scheduler and its workers on the memory bus, as far as a client sees them: scripted."""

import asyncio
from typing import Any

from slipstream.client.nats_transport import BusTransport
from slipstream.client.retries import Retries
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.bus.subjects import CANCEL, GENERATE, RESUME
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import decode_request, decoder_of, encode
from slipstream.shared.messages.common import Accepted, Failed, Timings, Usage
from slipstream.shared.messages.generate import (
    Cancel,
    Cancelled,
    Finished,
    GenerateRequest,
    Resume,
    TokenFrame,
)
from slipstream.shared.messages.packed import PackedInts

ID = RequestId("abc123")
WORDS = ["Un", "der", " the", " bridge"]
QUICK = Retries(max_num_retries=3, first_s=0.01, longest_s=0.05)
ACCEPTED = Accepted(request_id=ID)
REFUSED = Failed(code="overloaded", message="full", retry_after_ms=20)
LOST = Failed(code="worker_lost", message="worker decode-1 is gone")
REST = 0.02  # a step of a script: what came before it is read by then


def frames(*words: str) -> list[object]:
    """Return a frame a word."""
    offsets = [sum(map(len, words[:index])) for index in range(len(words))]
    return [
        TokenFrame(
            request_id=ID,
            attempt=1,
            index=index,
            text_offset=offsets[index],
            token_ids=PackedInts([index]),
            text=word,
        )
        for index, word in enumerate(words)
    ]


def finished(*words: str) -> Finished:
    """Return the ending of so many words."""
    return Finished(
        request_id=ID,
        attempt=1,
        finish_reason="stop",
        usage=Usage(num_prompt_tokens=1, num_output_tokens=len(words)),
        timings=Timings(ttft_ms=5.0, tpot_ms=2.0),
        num_tokens=len(words),
        text_length=sum(map(len, words)),
        seed=7,
    )


def whole(*words: str) -> list[object]:
    """Return all messages of a stream."""
    return [ACCEPTED, *frames(*words), finished(*words)]


class ScriptedStack:
    """Answers each request, and each Resume, with the next script; without one it is silent."""

    def __init__(self, *scripts: list[object]) -> None:
        self.requests: list[GenerateRequest] = []
        self.resumes: list[Resume] = []
        self.cancels: list[Cancel] = []
        self.broker: MemoryBroker | None = None
        self._scripts = list(scripts)

    def transport(self) -> BusTransport:
        """Return the client's way here; the stack lives on the loop that it is opened on."""
        return BusTransport(self._connect, "memory")

    @property
    def inboxes(self) -> list[Any]:
        """What clients still listen to. Any: private to the bus."""
        assert self.broker is not None, "opened"
        return [s for s in self.broker.subscriptions if s.pattern.startswith("_INBOX")]

    async def _connect(self) -> Bus:
        self.broker = MemoryBroker()
        self._bus = MemoryBus(self.broker)
        await self._bus.subscribe(GENERATE.subject(), self._generate)
        await self._bus.subscribe(RESUME.wildcard, self._resume)
        await self._bus.subscribe(CANCEL.wildcard, self._cancel)
        return MemoryBus(self.broker)

    async def _generate(self, message: Incoming) -> None:
        self.requests.append(decode_request(message.payload))
        await self._play(message.reply)

    async def _resume(self, message: Incoming) -> None:
        resume = decoder_of(Resume).decode(message.payload)
        self.resumes.append(resume)
        await self._play(resume.reply)

    async def _cancel(self, message: Incoming) -> None:
        self.cancels.append(decoder_of(Cancel).decode(message.payload))
        await self._bus.publish(message.reply, encode(Cancelled(request_id=ID)))

    async def _play(self, reply: str) -> None:
        for step in self._scripts.pop(0) if self._scripts else []:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                await self._bus.publish(reply, encode(step))
