"""The prefill worker on the bus."""

import asyncio
from typing import Any

from slipstream.services.prefill.parts import PrefillParts, open_parts
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import PREFILL
from slipstream.shared.config import PrefillConfig
from slipstream.shared.ids import WorkerId
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.generate import Cancel
from slipstream.shared.messages.jobs import PrefillJob
from slipstream.shared.messages.reports import Drain, ReportRequest
from slipstream.shared.telemetry.context import extract
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.reporter import new_epoch


class PrefillService:
    """Computes prompts into leased blocks and hands the sequences over."""

    role: Role = "prefill"

    def __init__(
        self, config: PrefillConfig, bus: Bus, tracer: Tracer, worker_id: WorkerId, meter: Meter
    ) -> None:
        self.worker_id = worker_id
        self._config = config
        self._bus = bus
        self._tracer = tracer
        self._meter = meter
        self._epoch = new_epoch()
        self._tasks: list[asyncio.Task[None]] = []
        self._parts: PrefillParts | None = None

    async def start(self) -> None:
        """Map the arena, load the model, listen, report."""
        worker = (self.worker_id, self._epoch)
        parts = await open_parts(self._config, self._bus, self._tracer, worker, self._meter)
        self._parts = parts
        await serve(self._bus, PREFILL.subject(worker_id=self.worker_id), PREFILL, self._answer)
        await parts.reporter.start()
        self._tasks = [asyncio.create_task(loop) for loop in parts.loops()]

    async def wait(self) -> None:
        """
        Return when a loop ends: the KV manager is gone, and with it everything held here.

        Raises ServiceDrainedError when the worker was told to leave, and is done.
        """
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Drain: no new jobs, finish or give up the running ones, leave."""
        parts = self._parts
        if parts is not None:
            parts.reporter.drain()
            await parts.jobs.drain(self._config.drain_s)
            await parts.reporter.stop()
        await cancel_all(self._tasks)
        if parts is not None:
            await parts.host.close()

    async def _answer(self, message: Any, incoming: Incoming) -> Any:  # Any: the topic's unions
        assert self._parts is not None, "listening starts after the parts exist"
        jobs, reporter = self._parts.jobs, self._parts.reporter
        if not isinstance(message, Drain) and (refusal := reporter.epochs.refusal(message)):
            return refusal
        match message:
            case PrefillJob():
                return jobs.accept(message, extract(incoming.headers))
            case Cancel():
                return jobs.cancel(message)
            case ReportRequest(with_jobs=True):
                return reporter.report_with_jobs(jobs.held())
            case Drain() | ReportRequest():
                if isinstance(message, Drain):
                    self._parts.draining.begin()
                return reporter.report(is_full=True)
