"""
The life of one submission: looked up, opened as a plain request, ended in the bucket of results.

The first ending under a key stays; only when it is there is the message acknowledged. So whatever
dies in between, the message comes again and finds either the ending or nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import structlog

from slipstream.services.scheduler.answer_inbox import AnswerInbox
from slipstream.services.scheduler.front import Front
from slipstream.services.scheduler.records import RequestRecord
from slipstream.services.scheduler.stopping import Stopping
from slipstream.services.scheduler.submission_endings import Ending, SubmissionEndings
from slipstream.services.scheduler.submission_metrics import SubmissionMetrics
from slipstream.services.scheduler.submission_room import SubmissionRoom
from slipstream.services.scheduler.submission_rules import (
    may_go_back,
    outcome_of,
    rest_for_room_s,
    retry_delay_s,
    was_never_placed,
)
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.durable import DurableMessage, StorageError
from slipstream.shared.bus.subjects import requeued_key
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.codec import ClientAnswer, decoder_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import MAX_CHOICES, REPLACED, Cancel, Completion
from slipstream.shared.messages.submission import Identity, identify
from slipstream.shared.telemetry import names

log = structlog.get_logger()

_LOOK_S = 1.0  # how often it is looked whether a request is still known
_ARRIVAL_S = 5.0  # what an answer may need once nobody holds its request any more
_ROOM_S = 30.0  # how long a submission that was taken waits here for room in the queue
_ROOM_REST_S = 0.05
_CANCEL_S = 1.0
_KEEP_SHARE = 3  # a message is kept three times in the time after which it would come again


class SubmissionDesk:
    """Owns the submissions in this scheduler's hands, one of a key at a time."""

    def __init__(
        self,
        config: SchedulerConfig,
        front: Front,
        room: SubmissionRoom,
        inbox: AnswerInbox,
        endings: SubmissionEndings,
        metrics: SubmissionMetrics,
        stopping: Stopping,
    ) -> None:
        self._config = config
        self._front = front
        self._room = room
        self._inbox = inbox
        self._endings = endings
        self._metrics = metrics
        self._stopping = stopping
        # Those here that will want no room in the queue any more, opened or refused.
        self.past_door: set[DurableMessage] = set()
        self._turns: dict[str, asyncio.Event] = {}
        self._door = asyncio.Lock()

    async def serve(self, message: DurableMessage) -> None:
        """Bring a submission to its ending, or put it back."""
        if message.num_deliveries > 1:
            self._metrics.redelivered()
        try:
            # What keeps it has stopped before it is settled: a late word would undo that.
            async with _kept(message, self._config.redelivery_s / _KEEP_SHARE):
                delay_s = await self._delay_of(message)
            if delay_s is None:
                await message.ack()
            else:
                await message.retry(delay_s)
        except StorageError as error:
            log.warning("submission_not_settled", sequence=message.sequence, error=str(error))
        finally:
            self.past_door.discard(message)

    async def _delay_of(self, message: DurableMessage) -> float | None:
        """Serve; return after which delay the message should come again, None for never."""
        try:
            identity = await asyncio.to_thread(
                identify, message.payload, message.sequence, requeued_key(message.subject)
            )
            async with self._turn(identity.key):
                return await self._in_turn(message, identity)
        except SlipstreamError as error:
            log.warning("submission_interrupted", sequence=message.sequence, error=str(error))
        except Exception:
            log.exception("submission_broken", sequence=message.sequence)
        return self._rest_s(message)

    @contextlib.asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        """Wait until no other submission with this key is being served here."""
        while (other := self._turns.get(key)) is not None:
            await other.wait()
        mine = self._turns[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._turns[key]
            mine.set()

    async def _in_turn(self, message: DurableMessage, identity: Identity) -> float | None:
        stored = await self._endings.find(identity.key)
        if stored is not None:
            # Whoever wrote it may have died before its dead letter.
            await self._endings.known(
                message, identity, stored, may_be_dead=message.num_deliveries > 1
            )
            return None
        ending = await self._ending(message, identity)
        outcome = outcome_of(ending.code, message.num_deliveries, self._config.max_num_deliveries)
        if outcome == "retry":
            return self._put_back(message, ending)
        await self._endings.conclude(message, identity, ending, is_dead=outcome == "bury")
        return None

    async def _ending(self, message: DurableMessage, identity: Identity) -> Ending:
        """Try once."""
        failed = self._worn(message)
        if failed is not None:
            return Ending.of_failure(message, failed)
        subject, answer = self._inbox.expect()
        try:
            incoming = Incoming(message.subject, message.payload, subject, message.headers)
            opened = await self._opened(message, incoming, identity)
            self.past_door.add(message)
            if isinstance(opened, Failed):
                return Ending.of_failure(message, opened)
            opened.root.set(names.MESSAGING_MESSAGE_ID, identity.key)
            return await self._answered(message, opened, answer)
        finally:
            answer.cancel()

    def _worn(self, message: DurableMessage) -> Failed | None:
        """Return why a submission is not even tried."""
        if message.num_deliveries > self._config.max_num_deliveries:
            num_before = message.num_deliveries - 1
            return Failed(code="lost", message=f"taken {num_before} times, and never answered")
        if message.age_s > self._config.max_submission_age_s:
            limit = self._config.max_submission_age_s
            return Failed(code="expired", message=f"waited for more than {limit:g} s", limit=limit)
        return None

    async def _opened(
        self, message: DurableMessage, incoming: Incoming, identity: Identity
    ) -> RequestRecord | Failed:
        """Open a request once it is let in; say after a while that it isn't, if it may go back."""
        may_rest = may_go_back(message.num_deliveries, self._config.max_num_deliveries)
        give_up_at = time.monotonic() + _ROOM_S if may_rest else float("inf")
        while True:
            # One after another: with room for one of them each of several would find it.
            async with self._door:
                opened = await self._let_in(incoming, identity)
            if isinstance(opened, RequestRecord) or opened.code != "overloaded":
                return opened
            rest_s = rest_for_room_s(opened.retry_after_ms)
            if time.monotonic() + rest_s > give_up_at:
                return opened
            await self._stopping.rest(rest_s)
            if (failed := self._worn(message)) is not None:
                return failed

    async def _let_in(self, incoming: Incoming, identity: Identity) -> RequestRecord | Failed:
        """Open a request as soon as there is room; what is interactive may still be faster."""
        num_requests = identity.num_choices
        if num_requests > MAX_CHOICES:
            num_requests = 1  # it will be refused by name
        if num_requests > (limit := self._config.max_num_waiting):
            message = f"n is {num_requests}, and no more than {limit} requests may wait here"
            return Failed(code="no_room", message=message, field="n", limit=limit)
        give_up_at = time.monotonic() + _ROOM_S
        while not self._stopping.is_asked and time.monotonic() < give_up_at:
            if self._room.has_room(num_requests, len(incoming.payload)):
                late = self._room.late(identity)
                return late or await self._front.open_request(incoming, is_submitted=True)
            await self._stopping.rest(_ROOM_REST_S)
        return self._not_now()

    def _not_now(self) -> Failed:
        if self._stopping.is_asked:
            return Failed(code="draining", message="the scheduler is shutting down")
        return Failed(code="overloaded", message="the queue has no room for it")

    async def _answered(
        self, message: DurableMessage, record: RequestRecord, answer: "asyncio.Future[bytes]"
    ) -> Ending:
        """Wait for the answer; whoever owes it may have died, or we may have to go."""
        gone_at = float("inf")
        awaited: set[asyncio.Future[Any]] = {answer, self._stopping.asked}  # Any: of two types
        while not answer.done() and not self._stopping.is_asked:
            await asyncio.wait(awaited, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            now = time.monotonic()
            gone_at = float("inf") if self._front.holds(record.request_id) else min(gone_at, now)
            if now - gone_at > _ARRIVAL_S:
                lost = Failed(code="lost", message="the answer did not arrive")
                return Ending.of_failure(message, lost)
        if not answer.done():
            await self._withdraw(record)
        if answer.done():
            found = decoder_of(ClientAnswer).decode(answer.result())
            # Cancelled by ourselves, a moment ago.
            is_ours = self._stopping.is_asked and isinstance(found, Failed)
            is_over = isinstance(found, Completion | Failed) and not was_never_placed(found)
            if is_over and not is_ours:
                return Ending(found, answer.result())
        return Ending.of_failure(message, self._not_now())

    async def _withdraw(self, record: RequestRecord) -> None:
        """Have its workers let go of a request that another scheduler will start anew."""
        with contextlib.suppress(SlipstreamError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await self._front.cancel(Cancel(request_id=record.request_id, reason=REPLACED))

    def _put_back(self, message: DurableMessage, ending: Ending) -> float:
        retry_after_ms = ending.answer.retry_after_ms if isinstance(ending.answer, Failed) else None
        delay_s = self._rest_s(message, retry_after_ms)
        log.info(
            "submission_put_back",
            sequence=message.sequence,
            num_deliveries=message.num_deliveries,
            code=ending.code,
            delay_s=delay_s,
        )
        return delay_s

    def _rest_s(self, message: DurableMessage, retry_after_ms: int | None = None) -> float:
        """Return how long a message rests; of a scheduler that goes the next takes over at once."""
        if self._stopping.is_asked:
            return 0.0
        return retry_delay_s(message.num_deliveries, retry_after_ms)


@contextlib.asynccontextmanager
async def _kept(message: DurableMessage, every_s: float) -> AsyncIterator[None]:
    async def keep_on() -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await message.keep()
            except StorageError as error:
                log.warning("submission_not_kept", sequence=message.sequence, error=str(error))

    keeping = asyncio.create_task(keep_on())
    try:
        yield
    finally:
        await cancel_all([keeping])
