"""What the scheduler itself tells clients: accepted, or the ending of what no worker answered."""

from typing import NamedTuple

import structlog

from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.subjects import is_inbox
from slipstream.shared.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    OverloadedError,
    SlipstreamError,
)
from slipstream.shared.messages.codec import encode, encoding_of
from slipstream.shared.messages.common import Accepted, Failed
from slipstream.shared.messages.generate import Completion, TokenFrame
from slipstream.shared.messages.jobs import Encoding
from slipstream.shared.messages.packed import PackedInts

log = structlog.get_logger()


class Refusal(NamedTuple):
    """Why a request ends without a worker's answer."""

    code: str
    message: str
    retry_after_ms: int | None = None


LATE = Refusal("deadline_exceeded", "the deadline passed before the answer's end")
CRASHED = Refusal("worker_crashed", "workers died of it three times, the last time in its own step")


def failed_from(error: SlipstreamError, trace_id: str | None = None) -> Failed:
    """Return the answer that tells a client of an error: field and limit by name."""
    field = error.field if isinstance(error, InvalidRequestError) else None
    limit = error.limit if isinstance(error, InvalidRequestError) else None
    retry_after_ms = error.retry_after_ms if isinstance(error, OverloadedError) else None
    if isinstance(error, MessageTooLargeError):
        limit = error.limit
    return Failed(
        code=error.code,
        message=str(error),
        field=field or None,
        limit=limit,
        retry_after_ms=retry_after_ms,
        trace_id=trace_id,
    )


class Answers:
    """Publishes them."""

    def __init__(self, bus: Bus, model: str) -> None:
        self._bus = bus
        self._model = model

    async def refuse(self, incoming: Incoming, failed: Failed) -> None:
        """Answer a message that never became a request."""
        if is_inbox(incoming.reply):
            await self._send(incoming.reply, failed, encoding_of(incoming.payload))

    async def keep_alive(self, record: RequestRecord, reply: str) -> None:
        """Tell a streaming client that we live; the server says at `reply` if nobody listens."""
        frame = TokenFrame(
            request_id=record.request_id,
            attempt=record.attempt,
            index=0,
            text_offset=0,
            token_ids=PackedInts(),
            text="",
            choice=record.choice,
        )
        payload = encode(frame, record.reply.encoding)
        await self._bus.publish(record.reply.subject, payload, reply=reply)

    async def accept(self, record: RequestRecord, subject: str | None = None) -> None:
        """Tell a streaming client that its request is in, and under which id and seed."""
        if not record.request.is_streamed:
            return
        accepted = Accepted(
            request_id=record.request_id,
            attempt=record.attempt,
            model=self._model,
            seed=record.request.sampling.seed,
            num_prompt_tokens=len(record.request.prompt_token_ids),
            trace_id=record.root.context.trace_id,
        )
        await self._send(subject or record.reply.subject, accepted, record.reply.encoding)

    async def answer(self, record: RequestRecord, answer: Completion | Failed) -> None:
        """Send the one answer of a plain request, or say that no message can hold it."""
        try:
            await self._send(record.reply.subject, answer, record.reply.encoding)
        except MessageTooLargeError as error:
            await self.fail(
                record,
                Refusal(
                    error.code,
                    f"the answer is too large for one message ({error}); use stream: true",
                ),
            )

    async def fail(self, record: RequestRecord, refusal: Refusal) -> None:
        """Send the one ending of a request that nobody else will end."""
        failed = Failed(
            code=refusal.code,
            message=refusal.message,
            request_id=record.request_id,
            attempt=record.attempt,
            retry_after_ms=refusal.retry_after_ms,
            trace_id=record.root.context.trace_id,
            choice=record.choice,
        )
        await self._send(record.reply.subject, failed, record.reply.encoding)

    async def _send(
        self, subject: str, message: Accepted | Completion | Failed, encoding: Encoding
    ) -> None:
        await self._bus.publish(subject, encode(message, encoding))
