"""Follow the choices of requests that want several, and answer those that are not streamed."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

import msgspec
import structlog

from slipstream.services.scheduler.answers import Answers, Refusal
from slipstream.services.scheduler.choices import ChoiceGroup, choice_id, choice_seed
from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.subjects import last_token
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import ClientAnswer, decoder_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.jobs import ReplyTarget
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.tracing import Tracer

log = structlog.get_logger()

# What the answer of a worker may need from its sending to its arrival.
_ARRIVAL_S = 5.0


@dataclass(frozen=True)
class _Followed:
    """A request whose choices are not all answered."""

    whole: RequestRecord
    group: ChoiceGroup

    @property
    def is_answered(self) -> bool:
        """Nothing is to be sent from here any more, or ever was."""
        return self.whole.reply.is_streamed or self.group.is_answered


class ChoiceDesk:
    """
    Owns the groups. A choice is a request of its own for everybody else.

    The choices of a streamed request go straight to its client, each with an ending of its own.
    Those of a plain one come here, and go on as one answer.
    """

    def __init__(
        self,
        bus: Bus,
        tracer: Tracer,
        answers: Answers,
        cancel: Callable[[RequestId], Awaitable[object]],
    ) -> None:
        self._bus = bus
        self._tracer = tracer
        self._answers = answers
        self._cancel = cancel
        self._inbox = bus.new_inbox()
        self._followed: dict[RequestId, _Followed] = {}
        self._by_choice: dict[RequestId, tuple[_Followed, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Hears of each request of which nothing is to be sent any more.
        self.on_settled: Callable[[RequestId], None] = lambda _request_id: None

    async def start(self) -> None:
        """Listen for the answers of plain choices."""
        await self._bus.subscribe(f"{self._inbox}.*", self._arrived)

    def open(
        self, whole: RequestRecord, ended: Collection[int] = frozenset()
    ) -> list[RequestRecord]:
        """Return the record of each choice that has not ended, and follow them from now on."""
        request = whole.request
        group = ChoiceGroup(whole.request_id, request.sampling.seed, request.num_choices)
        followed = _Followed(whole, group)
        self._followed[whole.request_id] = followed
        for choice, request_id in enumerate(group.ids):
            self._by_choice[request_id] = (followed, choice)
        group.closed |= set(ended)
        return [
            self._record(whole, choice)
            for choice in range(request.num_choices)
            if choice not in group.closed
        ]

    def ids_of(self, request_id: RequestId) -> list[RequestId]:
        """Return the ids of the choices of a request that is followed; none of any other."""
        followed = self._followed.get(request_id)
        return followed.group.ids if followed is not None else []

    def closed(self, record: RequestRecord, code: str | None) -> None:
        """Take note that a record has ended, of a choice or not."""
        if record.request_id not in self._by_choice:
            return
        followed, choice = self._by_choice[record.request_id]
        followed.group.closed.add(choice)
        if len(followed.group.closed) < followed.group.num_choices:
            return
        if followed.whole.reply.is_streamed:
            self.on_settled(followed.whole.request_id)
        followed.whole.root.end(code)
        delay_s = 0.0 if followed.is_answered else _ARRIVAL_S
        asyncio.get_running_loop().call_later(delay_s, self._forget, followed)

    def _record(self, whole: RequestRecord, choice: int) -> RequestRecord:
        request, request_id = whole.request, choice_id(whole.request_id, choice)
        sampling = msgspec.structs.replace(
            request.sampling, seed=choice_seed(request.sampling.seed, choice)
        )
        reply = whole.reply
        if not reply.is_streamed:
            reply = ReplyTarget(f"{self._inbox}.{request_id}", encoding="msgpack")
        span = self._tracer.start(names.SPAN_CHOICE, parent=whole.root.context)
        span.set(names.MESSAGING_CONVERSATION_ID, request_id)
        return RequestRecord(
            request_id=request_id,
            # The bytes that wait are there once.
            request=replace(
                request, sampling=sampling, num_bytes=request.num_bytes if choice == 0 else 0
            ),
            reply=reply,
            root=span,
            deadline=whole.deadline,
            choice=choice,
            client_inbox=whole.client_inbox,
            attempt=whole.attempt,
        )

    async def _arrived(self, incoming: Incoming) -> None:
        found = self._by_choice.get(RequestId(last_token(incoming.subject)))
        answer = decoder_of(ClientAnswer).decode(incoming.payload)
        if found is None or not isinstance(answer, Completion | Failed):
            return  # its group has ended already, with the failure of another choice
        followed, choice = found
        joined = followed.group.take(answer, choice)
        if joined is None:
            return
        await self._answers.answer(followed.whole, joined)
        self.on_settled(followed.whole.request_id)
        if isinstance(joined, Failed):
            await asyncio.gather(*map(self._cancel, followed.group.ids))

    def _forget(self, followed: _Followed) -> None:
        """Let go of a group; a plain one whose answers got lost is failed."""
        del self._followed[followed.whole.request_id]
        for request_id in followed.group.ids:
            del self._by_choice[request_id]
        if not followed.is_answered:
            followed.group.is_answered = True
            task = asyncio.create_task(self._fail(followed.whole))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fail(self, whole: RequestRecord) -> None:
        refusal = Refusal("lost", "the answer of a choice did not arrive")
        try:
            await self._answers.fail(whole, refusal)
            self.on_settled(whole.request_id)
        except SlipstreamError as error:
            log.warning("choices_not_failed", **whole.log_fields, error=str(error))
