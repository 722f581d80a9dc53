"""Follow the choices of requests that want several, and answer those that are not streamed."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from slipstream.services.scheduler.choices import ChoiceGroup
from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.subjects import last_token
from slipstream.shared.errors import MessageTooLargeError, SlipstreamError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.jobs import ReplyTarget
from slipstream.shared.telemetry.spans import Span

log = structlog.get_logger()

# What the answer of a worker may need from its sending to its arrival.
_ARRIVAL_S = 5.0


class ChoiceDesk:
    """
    Owns the groups. A choice is a request of its own for everybody else.

    The choices of a streamed request go straight to its client, each with an ending of its own.
    Those of a plain one come here, and go on as one answer.
    """

    def __init__(self, bus: Bus, cancel: Callable[[RequestId], Awaitable[object]]) -> None:
        self._bus = bus
        self._cancel = cancel
        self._inbox = bus.new_inbox()
        self._groups: dict[RequestId, ChoiceGroup] = {}
        self._replies: dict[RequestId, ReplyTarget] = {}
        self._roots: dict[RequestId, Span] = {}
        self._group_of: dict[RequestId, tuple[ChoiceGroup, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen for the answers of plain choices."""
        await self._bus.subscribe(f"{self._inbox}.*", self._arrived)

    def open(self, group: ChoiceGroup, reply: ReplyTarget, root: Span) -> None:
        """Begin to follow a group."""
        self._groups[group.request_id] = group
        self._replies[group.request_id] = reply
        self._roots[group.request_id] = root
        for choice, request_id in enumerate(group.ids):
            self._group_of[request_id] = (group, choice)

    def reply_of(self, group: ChoiceGroup, choice: int) -> ReplyTarget:
        """Return where the answer of a choice goes."""
        reply = self._replies[group.request_id]
        if reply.is_streamed:
            return reply
        return ReplyTarget(f"{self._inbox}.{group.ids[choice]}", encoding="msgpack")

    def ids_of(self, request_id: RequestId) -> list[RequestId]:
        """Return the ids of the choices of a request that is followed; none of any other."""
        group = self._groups.get(request_id)
        return group.ids if group is not None else []

    def closed(self, record: RequestRecord, code: str | None) -> None:
        """Take note that a choice has ended."""
        if record.request_id not in self._group_of:
            return
        group, choice = self._group_of[record.request_id]
        group.closed.add(choice)
        if len(group.closed) < group.num_choices:
            return
        self._roots[group.request_id].end(code)
        is_done = group.is_answered or self._replies[group.request_id].is_streamed
        delay_s = 0.0 if is_done else _ARRIVAL_S
        asyncio.get_running_loop().call_later(delay_s, self._forget, group)

    async def _arrived(self, incoming: Incoming) -> None:
        found = self._group_of.get(RequestId(last_token(incoming.subject)))
        if found is None:
            return  # its group has ended already, with the failure of another choice
        group, choice = found
        answer = decoder_of(ClientAnswer).decode(incoming.payload)
        if not isinstance(answer, Completion | Failed):
            return
        joined = group.take(answer, choice)
        if joined is None:
            return
        await self._send(group, joined)
        if isinstance(joined, Failed):
            for request_id in group.ids:
                await self._cancel(request_id)

    async def _send(self, group: ChoiceGroup, answer: Completion | Failed) -> None:
        reply = self._replies[group.request_id]
        try:
            await self._bus.publish(reply.subject, encode(answer, reply.encoding))
        except MessageTooLargeError as error:
            failed = Failed(
                code=error.code,
                message=f"{group.num_choices} choices are too large for one message ({error}); "
                "use stream: true",
                request_id=group.request_id,
            )
            await self._bus.publish(reply.subject, encode(failed, reply.encoding))

    def _forget(self, group: ChoiceGroup) -> None:
        """Let go of a group; a plain one whose answers got lost is failed."""
        self._groups.pop(group.request_id, None)
        for request_id in group.ids:
            self._group_of.pop(request_id, None)
        self._roots.pop(group.request_id, None)
        if not group.is_answered and not self._replies[group.request_id].is_streamed:
            group.is_answered = True
            failed = Failed(
                code="lost",
                message="the answer of a choice did not arrive",
                request_id=group.request_id,
            )
            reply = self._replies[group.request_id]
            task = asyncio.create_task(self._fail(reply, failed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._replies.pop(group.request_id, None)

    async def _fail(self, reply: ReplyTarget, failed: Failed) -> None:
        try:
            await self._bus.publish(reply.subject, encode(failed, reply.encoding))
        except SlipstreamError as error:
            log.warning("choices_not_failed", request_id=failed.request_id, error=str(error))
