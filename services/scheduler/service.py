"""The scheduler on the bus."""

import asyncio
from typing import Any

from slipstream.services.scheduler.front import Front, open_front
from slipstream.services.scheduler.metrics import SchedulerMetrics
from slipstream.services.scheduler.submissions import Submissions
from slipstream.shared.bus.bus import Bus, Incoming
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
from slipstream.shared.ids import WorkerId
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.codec import encoding_of
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.generate import Cancel, Resume
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import Tracer


class SchedulerService:
    """Admits, queues and places requests."""

    role: Role = "scheduler"

    def __init__(
        self,
        config: SchedulerConfig,
        bus: Bus,
        tracer: Tracer,
        worker_id: WorkerId,
        meter: Meter,
    ) -> None:
        self.worker_id = worker_id
        self._config = config
        self._bus = bus
        self._tracer = tracer
        self._meter = meter
        self._metrics = SchedulerMetrics(meter)
        self._tasks: list[asyncio.Task[None]] = []
        self._front: Front | None = None
        self._submissions: Submissions | None = None

    async def start(self) -> None:
        """Read the model's tokenizer, listen."""
        front = await open_front(self._config, self._bus, self._tracer, self._metrics)
        self._front = front
        self._metrics.watch(front.desk.records.values)
        self._metrics.watch_prefixes(front.desk.load.prefixes.num_blocks)
        await front.start()
        await serve(self._bus, REPORT.wildcard, REPORT, self._report)
        # Before the first request: who is not known yet can't be given one.
        await front.watch.meet()
        await serve(self._bus, CANCEL.wildcard, CANCEL, self._cancel)
        await serve(self._bus, RESUME.wildcard, RESUME, self._resume)
        for topic in (GENERATE, GENERATE_MODEL):
            await listen(self._bus, topic.wildcard, topic, front.generate, queue=SCHEDULER_QUEUE)
        self._submissions = Submissions(self._config, self._bus, front, self._meter)
        await self._submissions.start()
        await self._bus.flush()
        self._tasks = [asyncio.create_task(loop) for loop in front.loops()]

    async def wait(self) -> None:
        """Run until a loop fails, which none should."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Refuse what waits, or put it back; what runs belongs to its workers."""
        if self._front is not None:
            self._front.is_draining = True
            if self._submissions is not None:
                await self._submissions.stop(self._config.drain_s)
            await self._front.desk.drain(self._config.drain_s)
        await cancel_all(self._tasks)

    async def _report(self, message: WorkerReport, _incoming: Incoming) -> None:
        assert self._front is not None, "listening starts after the front exists"
        await self._front.watch.report(message)

    async def _cancel(self, message: Cancel, _incoming: Incoming) -> Any:  # Any: a reply union
        assert self._front is not None, "as above"
        return await self._front.cancel(message)

    async def _resume(self, message: Resume, incoming: Incoming) -> Any:  # Any: a reply union
        assert self._front is not None, "as above"
        return await self._front.resume(message, encoding_of(incoming.payload))
