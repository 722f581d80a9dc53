"""The durable entrance: takes submissions from the stream while there is room for them."""

import asyncio
import contextlib
import time
from functools import partial

import structlog

from slipstream.services.scheduler.answer_inbox import AnswerInbox
from slipstream.services.scheduler.front import Front
from slipstream.services.scheduler.stopping import Stopping
from slipstream.services.scheduler.submission_desk import SubmissionDesk
from slipstream.services.scheduler.submission_endings import SubmissionEndings
from slipstream.services.scheduler.submission_metrics import SubmissionMetrics
from slipstream.services.scheduler.submission_room import SubmissionRoom
from slipstream.shared.bus.bus import HEADER_ROOM, Bus
from slipstream.shared.bus.durable import DurableLimits, DurableMessage, QueueCounts, StorageError
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.telemetry.meter import Meter

log = structlog.get_logger()

_TAKE_S = 0.5  # a stop waits as long for a message that may be on its way
_REST_S = 0.1  # between two looks for room
_TROUBLE_REST_S = 1.0
_COUNT_S = 5.0  # how often the stream is looked at


def limits_of(config: SchedulerConfig) -> DurableLimits:
    """Return what the settings say of the streams."""
    return DurableLimits(
        redelivery_s=config.redelivery_s,
        max_num_queued=config.max_num_queued,
        max_queued_bytes=config.max_queued_bytes,
        # The publisher of a larger one is told at once, not by a result.
        max_message_bytes=config.max_request_bytes + HEADER_ROOM,
        result_keep_s=config.result_keep_s,
        max_result_bytes=config.max_result_bytes,
        dead_keep_s=config.dead_keep_s,
        max_dead_bytes=config.max_dead_bytes,
    )


class Submissions:
    """Owns the pull: never more in hand than may be, nor than the waiting queue has room for."""

    def __init__(self, config: SchedulerConfig, bus: Bus, front: Front, meter: Meter) -> None:
        self._config = config
        self._front = front
        self._durable = bus.durable()
        self._inbox = AnswerInbox(bus)
        metrics = SubmissionMetrics(meter)
        self._stopping = Stopping()
        endings = SubmissionEndings(self._durable, metrics, self._stopping, self._restore)
        self._room = SubmissionRoom(config, front)
        self._desk = SubmissionDesk(
            config, front, self._room, self._inbox, endings, metrics, self._stopping
        )
        self._counts = QueueCounts(0, 0)
        self._counted_at = float("-inf")
        self._troubles: set[str] = set()  # since a message could last be taken
        self._freed = asyncio.Event()
        self._is_taking = True
        self._loop: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        metrics.watch(lambda: self._counts, lambda: len(self.tasks))

    async def start(self) -> None:
        """
        Make the streams and begin to take.

        Raises ConfigurationError where they can't become what is wanted. Storage that is not there
        yet is no error: what is interactive works without.
        """
        if self._config.max_num_submissions == 0:
            return
        try:
            await self._durable.ensure(limits_of(self._config))
        except StorageError as error:
            self._note(error)
        await self._inbox.start()
        self._loop = asyncio.create_task(self._pull_loop())

    async def stop(self, timeout_s: float) -> None:
        """Take no more, and put back what has no answer yet; bounded."""
        if self._loop is None:
            return
        # First, or what is put back would come to ourselves.
        self._is_taking = False
        await asyncio.wait({self._loop}, timeout=2 * _TAKE_S)
        self._stopping.ask()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=timeout_s)
        # What is left comes again after `redelivery_s`.
        await cancel_all([self._loop, *self.tasks])

    async def abandon(self) -> None:
        """Let go of all of them: they come again, to whoever takes them."""
        loops = [self._loop] if self._loop is not None else []
        await cancel_all([*loops, *self.tasks])

    async def _pull_loop(self) -> None:
        while self._is_taking:
            try:
                await self._pull()
            except SlipstreamError as error:
                self._note(error)
                await self._stopping.rest(_TROUBLE_REST_S)
                await self._restore()
            except Exception:
                log.exception("submissions_broken")
                await self._stopping.rest(_TROUBLE_REST_S)

    async def _pull(self) -> None:
        if time.monotonic() - self._counted_at > _COUNT_S:
            self._counted_at = time.monotonic()
            self._counts = await self._durable.queue.counts()
        if not self._has_room():
            await self._until_freed()
            return
        message = await self._durable.queue.take(_TAKE_S)
        self._troubles.clear()
        if message is not None:
            self._begin(message)

    def _has_room(self) -> bool:
        """Tell whether one more would be admitted, and somebody is there to answer it."""
        # From when they are taken on: the task of the last one may have yet to start.
        num_unopened = len(self.tasks) - len(self._desk.past_door)
        return (
            len(self.tasks) < self._config.max_num_submissions
            and self._front.watch.knows_decode_worker
            and self._room.has_room(1 + num_unopened)
            and self._room.late() is None
        )

    async def _until_freed(self) -> None:
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REST_S):
                await self._freed.wait()

    def _begin(self, message: DurableMessage) -> None:
        task = asyncio.create_task(self._desk.serve(message))
        self.tasks.add(task)
        task.add_done_callback(partial(self._ended, message))

    def _ended(self, message: DurableMessage, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("submission_task_failed", sequence=message.sequence, exc_info=error)

    async def _restore(self) -> None:
        """Make the streams again: the server may have come back without them."""
        try:
            await self._durable.ensure(limits_of(self._config))
        except SlipstreamError as error:
            self._note(error)

    def _note(self, error: SlipstreamError) -> None:
        """Log trouble once, not every second that it lasts, though queue and streams take turns."""
        if str(error) not in self._troubles:
            self._troubles.add(str(error))
            log.warning("submissions_unavailable", error=str(error))
