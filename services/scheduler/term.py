"""One term of an active scheduler, from taking over to handing over, or to being succeeded."""

import asyncio
from typing import Any

from slipstream.services.scheduler.metrics import SchedulerMetrics
from slipstream.services.scheduler.opening import OpenModel, open_front
from slipstream.services.scheduler.shadow import Shadow
from slipstream.services.scheduler.standby import Standby
from slipstream.services.scheduler.submissions import Submissions
from slipstream.services.scheduler.succession import Succession
from slipstream.services.scheduler.term_bus import TermBus
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import listen, serve
from slipstream.shared.bus.subjects import (
    CANCEL,
    GENERATE,
    GENERATE_MODEL,
    REPORT,
    RESUME,
    SCHEDULER_QUEUE,
)
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.codec import decoder_of, encode, encoding_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Cancel, Resume
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.reporter import REPORT_S

_LOOK_AGAIN_S = 1.0  # between two questions to one worker
_FIRST_REPORTS_S = REPORT_S + 0.05


class Term:
    """Serves clients. What comes while it takes over is kept until it knows what there is."""

    def __init__(
        self,
        config: SchedulerConfig,
        bus: TermBus,
        tracer: Tracer,
        meter: Meter,
        model: OpenModel,
        succession: Succession,
    ) -> None:
        self.number = 0  # of the terms of this scheduler
        self._config = config
        self._bus = bus
        self._meter = meter
        self._succession = succession
        metrics = SchedulerMetrics(meter)
        self.front, self._takeover = open_front(config, bus, tracer, metrics, model, succession)
        metrics.watch(self.front.desk.records.values)
        metrics.watch_prefixes(self.front.desk.load.prefixes.num_blocks)
        self.submissions = Submissions(config, bus, self.front, meter)
        self._held_back: list[Incoming] | None = []
        self._tasks: list[asyncio.Task[None]] = []
        self._asking: set[WorkerId] = set()

    async def start(self, standby: Standby) -> None:
        """Listen, learn what runs, and go on with it."""
        front = self.front
        is_registry_new = await front.start()
        await serve(self._bus, REPORT.wildcard, REPORT, self._report)
        # Guarded by a lease we get all messages. In a group with one that is frozen, and leads no
        # longer, half of them would be sent to it.
        queue = "" if self._succession.epoch else SCHEDULER_QUEUE
        for topic in (GENERATE, GENERATE_MODEL):
            await listen(self._bus, topic.wildcard, topic, self._generate, queue=queue)
        await self._bus.flush()
        # Before the first request: who is not known yet can't be given one.
        reports = await front.watch.meet()
        if is_registry_new:
            # Who came before the registry has no record in it, and tells of itself in this time.
            await asyncio.sleep(_FIRST_REPORTS_S)
        await serve(self._bus, CANCEL.wildcard, CANCEL, self._cancel)
        await serve(self._bus, RESUME.wildcard, RESUME, self._resume)
        loops = front.loops()
        await self._bus.flush()
        await standby.stop()
        held_back = self._open_door(standby.shadow)
        await self._takeover.run(reports, list(standby.shadow.drain()))
        front.watch.on_unknown = self._look_again
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        for incoming in held_back:
            front.desk.run(self._generate_late(incoming))
        for incoming in standby.controls():
            front.desk.run(self._control(incoming))
        await self.submissions.start()
        await self._bus.flush()

    async def wait(self) -> None:
        """Run until a loop fails, which none should."""
        await asyncio.gather(*self._tasks)

    async def drain(self) -> None:
        """Refuse what waits, or put it back; what runs belongs to its workers."""
        self.front.is_draining = True
        await self.submissions.stop(self._config.drain_s)
        await self.front.desk.drain(self._config.drain_s)
        await self.close()

    async def hand_over(self) -> None:
        """Leave everything to a successor, which knows what is open; put submissions back."""
        self.front.is_draining = True
        await self.submissions.stop(self._config.drain_s)
        await self.close()

    def end(self) -> None:
        """Let nothing leave any more."""
        self._bus.end()

    async def close(self) -> None:
        """End without a word to anybody."""
        self._bus.end()
        await self.submissions.abandon()
        await cancel_all(self._tasks)
        await self.front.desk.abandon()
        await self._bus.close()

    def _open_door(self, shadow: Shadow) -> list[Incoming]:
        """Return what came meanwhile, out of the shadow: both heard of it."""
        held_back, self._held_back = self._held_back or [], None
        for incoming in held_back:
            shadow.forget(incoming)
        return held_back

    async def _generate(self, incoming: Incoming) -> Failed | None:
        if self._held_back is not None:
            self._held_back.append(incoming)
            return None
        return await self.front.generate(incoming)

    async def _generate_late(self, incoming: Incoming) -> None:
        await self.front.generate(incoming)

    async def _report(self, message: WorkerReport, _incoming: Incoming) -> None:
        await self.front.watch.report(message)

    async def _cancel(self, message: Cancel, _incoming: Incoming) -> Any:  # Any: a reply union
        return await self.front.cancel(message)

    async def _resume(self, message: Resume, incoming: Incoming) -> Any:  # Any: a reply union
        return await self.front.resume(message, encoding_of(incoming.payload))

    async def _control(self, incoming: Incoming) -> None:
        """Do what was asked when nobody led."""
        try:
            message: Cancel | Resume = decoder_of(Cancel | Resume).decode(incoming.payload)
            answer = (
                await self.front.cancel(message)
                if isinstance(message, Cancel)
                else await self.front.resume(message, encoding_of(incoming.payload))
            )
        except SlipstreamError as error:
            answer = Failed(code=error.code, message=str(error))
        if answer is not None and incoming.reply:
            await self._bus.publish(incoming.reply, encode(answer, encoding_of(incoming.payload)))

    def _look_again(self, worker_id: WorkerId) -> None:
        """Ask a worker that holds what nobody here knows of, one question at a time."""
        if worker_id not in self._asking:
            self._asking.add(worker_id)
            self.front.desk.run(self._adopt_from(worker_id))

    async def _adopt_from(self, worker_id: WorkerId) -> None:
        try:
            report = await self.front.watch.meet_one(worker_id)
            if report is not None:
                self._takeover.adopt(report)
            await asyncio.sleep(_LOOK_AGAIN_S)
        finally:
            self._asking.discard(worker_id)
