"""Where submissions end: in the bucket of results, in which the first ending under a key stays."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from slipstream.services.scheduler.stopping import Stopping
from slipstream.services.scheduler.submission_metrics import SubmissionMetrics
from slipstream.shared.bus.durable import (
    BODY_DIGEST,
    MESSAGE_ID,
    Durable,
    DurableMessage,
    StorageError,
    Stored,
)
from slipstream.shared.bus.subjects import DEAD
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode, encoding_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.reports import DeadLetter
from slipstream.shared.messages.submission import Identity, is_same, sequence_key

log = structlog.get_logger()

_STORE_REST_S = 1.0


@dataclass(frozen=True, slots=True)
class Ending:
    """What a try has come to, with the bytes that are stored of it."""

    answer: Completion | Failed
    payload: bytes

    @property
    def code(self) -> str | None:
        """The code of a failure."""
        return self.answer.code if isinstance(self.answer, Failed) else None

    @classmethod
    def of_failure(cls, message: DurableMessage, failed: Failed) -> "Ending":
        """Return a failure as the message's publisher can read it."""
        return cls(failed, encode(failed, encoding_of(message.payload)))


class SubmissionEndings:
    """Writes endings and dead letters."""

    def __init__(
        self,
        durable: Durable,
        metrics: SubmissionMetrics,
        stopping: Stopping,
        restore: Callable[[], Awaitable[None]],
    ) -> None:
        self._durable = durable
        self._metrics = metrics
        self._stopping = stopping
        self._restore = restore

    async def find(self, key: str) -> Stored | None:
        """Return the ending under a key. Raises StorageError."""
        return await self._durable.results.get(key)

    async def conclude(
        self, message: DurableMessage, identity: Identity, ending: Ending, *, is_dead: bool
    ) -> None:
        """Write the ending, unless another one was first, and leave a dead letter of a failure."""
        is_first = await self._store(identity.key, identity, ending.payload)
        log.info(
            "submission_ended",
            key=identity.key,
            sequence=message.sequence,
            num_deliveries=message.num_deliveries,
            request_id=ending.answer.request_id,
            trace_id=ending.answer.trace_id,
            code=ending.code,
            is_first=is_first,
        )
        if not is_first:
            stored = await self.find(identity.key)
            if stored is not None:
                await self.known(message, identity, stored, may_be_dead=is_dead)
        elif is_dead and isinstance(ending.answer, Failed):
            await self._bury(message, identity.key, ending.answer)

    async def known(
        self, message: DurableMessage, identity: Identity, stored: Stored, *, may_be_dead: bool
    ) -> None:
        """Leave the ending that is there, or say that it is another request's."""
        if is_same(stored.headers.get(BODY_DIGEST), identity.body_digest):
            log.info("submission_known", key=identity.key, sequence=message.sequence)
            failed = _failure_in(stored)
            if may_be_dead and failed is not None and failed.code != "cancelled":
                await self._bury(message, identity.key, failed)
            return
        failed = Failed(
            code="conflict",
            message=f"request_key: the result {identity.key} is of another request; "
            "use another key for another body",
            field="request_key",
        )
        log.info("submission_conflict", key=identity.key, sequence=message.sequence)
        await self._store(identity.own_key, identity, Ending.of_failure(message, failed).payload)
        await self._bury(message, identity.own_key, failed)

    async def _store(self, key: str, identity: Identity, payload: bytes) -> bool:
        """Write a result as soon as it can be written; False when there is one already."""
        while True:
            try:
                return await self._durable.results.create(
                    key, payload, {BODY_DIGEST: identity.body_digest}
                )
            except StorageError as error:
                if self._stopping.is_asked:
                    raise
                log.warning("result_not_stored", key=key, error=str(error))
            # What was computed is not thrown away because the server restarts or is full.
            await self._stopping.rest(_STORE_REST_S)
            await self._restore()

    async def _bury(self, message: DurableMessage, key: str, failed: Failed) -> None:
        letter = DeadLetter(
            reason=failed.code,
            payload=message.payload,
            num_deliveries=message.num_deliveries,
            message=failed.message,
            key=key,
            subject=message.subject,
        )
        try:
            await self._durable.publish(
                DEAD.subject(reason=failed.code),
                encode(letter, encoding_of(message.payload)),
                # Of the message, not of the job: requeued, it may die again within the window.
                {MESSAGE_ID: sequence_key(message.sequence)},
            )
        except StorageError as error:
            # Its ending is stored, which is what its publisher was promised.
            log.warning("dead_letter_lost", key=key, error=str(error))
            return
        self._metrics.dead(failed.code)


def _failure_in(stored: Stored) -> Failed | None:
    try:
        answer = decoder_of(ClientAnswer).decode(stored.value)
    except SlipstreamError:
        return None  # written by somebody else
    return answer if isinstance(answer, Failed) else None
