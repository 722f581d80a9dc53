"""A submission desk over the in-memory streams, and a front that does as a test says."""

import asyncio
from types import SimpleNamespace
from typing import Any

from slipstream.services.scheduler.answer_inbox import AnswerInbox
from slipstream.services.scheduler.stopping import Stopping
from slipstream.services.scheduler.submission_desk import SubmissionDesk
from slipstream.services.scheduler.submission_endings import SubmissionEndings
from slipstream.services.scheduler.submission_metrics import SubmissionMetrics
from slipstream.services.scheduler.submission_room import SubmissionRoom
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.memory_durable import MemoryMessage
from slipstream.shared.bus.subjects import SUBMIT
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode, encoding_of
from slipstream.shared.messages.common import Failed, Timings, Usage
from slipstream.shared.messages.generate import Cancel, Choice, Completion, GenerateRequest
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import DeadLetter
from slipstream.shared.scheduling.door import TooLate
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter

from .scheduler_samples import make_config, make_record


def completion(request: str = "r", text: str = "a") -> Completion:
    return Completion(
        request_id=RequestId(request),
        attempt=1,
        choices=[Choice(text=text, token_ids=PackedInts([1]), finish_reason="stop")],
        usage=Usage(num_prompt_tokens=3, num_output_tokens=1),
        timings=Timings(),
    )


class ScriptedFront:
    """Admits everything and answers at once, unless a test has other plans."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.opened: list[Incoming] = []
        self.cancelled: list[Cancel] = []
        self.is_full = False
        self.answer: Any = completion()  # Any: an ending, or None for none
        self.refusals: list[Failed] = []  # each for one request
        self.held: set[RequestId] = set()
        self.late: TooLate | None = None
        self.judged: list[GenerateRequest] = []
        self.desk = SimpleNamespace(load=SimpleNamespace(judge_read=self._judge_read))

    def _judge_read(self, request: GenerateRequest, deadline_ms: int) -> TooLate | None:
        assert deadline_ms == request.deadline_ms
        self.judged.append(request)
        return self.late

    def has_room(self, num_requests: int = 1, num_bytes: int = 0) -> bool:
        assert num_requests > 0
        assert num_bytes >= 0
        return not self.is_full

    async def open_request(self, incoming: Incoming, *, is_submitted: bool = False) -> Any:
        assert is_submitted
        self.opened.append(incoming)
        if self.refusals:
            return self.refusals.pop(0)
        record = make_record(f"r{len(self.opened)}", is_streamed=False)
        if self.answer is not None:
            await self.say(self.answer)
        else:
            self.held.add(record.request_id)
        return record

    async def say(self, answer: Any, number: int = -1) -> None:
        """Answer a request that was opened."""
        incoming = self.opened[number]
        encoded = encode(answer, encoding_of(incoming.payload))
        await self.bus.publish(incoming.reply, encoded)

    def holds(self, request_id: RequestId) -> bool:
        return request_id in self.held

    async def cancel(self, message: Cancel) -> None:
        self.cancelled.append(message)


class SubmissionOffice:
    """One scheduler's submission desk."""

    def __init__(self, **config: Any) -> None:
        self.bus = MemoryBus()
        self.durable = self.bus.durable()
        self.front = ScriptedFront(self.bus)
        self.meter = PrometheusMeter()
        self.inbox = AnswerInbox(self.bus)
        self.num_restored = 0
        metrics = SubmissionMetrics(self.meter)
        self.stopping = Stopping()
        endings = SubmissionEndings(self.durable, metrics, self.stopping, self._restore)
        self.desk = SubmissionDesk(
            make_config(**config),
            self.front,  # type: ignore[arg-type] # what a desk needs of it
            SubmissionRoom(make_config(**config), self.front),  # type: ignore[arg-type] # likewise
            self.inbox,
            endings,
            metrics,
            self.stopping,
        )

    async def open(self) -> "SubmissionOffice":
        await self.inbox.start()
        return self

    async def _restore(self) -> None:
        self.num_restored += 1

    async def submit(self, payload: bytes = b'{"prompt": "x"}') -> MemoryMessage:
        """Publish, and take it from the queue."""
        await self.durable.publish(SUBMIT.subject(), payload)
        return await self.take()

    async def take(self) -> MemoryMessage:
        message = await self.durable.queue.take(1.0)
        assert message is not None
        return message

    def serve(self, message: MemoryMessage) -> "asyncio.Task[None]":
        return asyncio.create_task(self.desk.serve(message))

    def ending(self, key: str) -> Any:
        """Return what is stored under a key, None for nothing."""
        stored = self.durable.results.entries.get(key)
        return decoder_of(ClientAnswer).decode(stored.value) if stored is not None else None

    @property
    def letters(self) -> list[DeadLetter]:
        return [decoder_of(DeadLetter).decode(each.payload) for each in self.durable.dead]

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything any more."""
        return not (self.desk.past_door or self.desk._turns or self.inbox._expected)
