"""The decode worker on the bus."""

import asyncio
from typing import Any

from slipstream.services.decode.answering import answer
from slipstream.services.decode.parts import DecodeParts, open_parts
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import DECODE, REPORT
from slipstream.shared.config import DecodeConfig
from slipstream.shared.ids import WorkerId
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.telemetry.context import extract
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.reporter import new_epoch


class DecodeService:
    """Runs the continuous batch and publishes its streams."""

    role: Role = "decode"

    def __init__(
        self, config: DecodeConfig, bus: Bus, tracer: Tracer, worker_id: WorkerId, meter: Meter
    ) -> None:
        self.worker_id = worker_id
        self._config = config
        self._bus = bus
        self._tracer = tracer
        self._meter = meter
        self._epoch = new_epoch()
        self._tasks: list[asyncio.Task[None]] = []
        self._parts: DecodeParts | None = None

    async def start(self) -> None:
        """Map the arena, load the model, listen, report."""
        worker = (self.worker_id, self._epoch)
        parts = await open_parts(self._config, self._bus, self._tracer, worker, self._meter)
        self._parts = parts
        await parts.publisher.start()
        await serve(self._bus, DECODE.subject(worker_id=self.worker_id), DECODE, self._answer)
        if parts.draft_client is not None:
            await serve(self._bus, REPORT.wildcard, REPORT, self._saw_report)
            await parts.draft_client.find()
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
        if self._parts is not None:
            self._parts.jobs.fail_all("kv_lost", "the KV manager of this host is gone")

    async def stop(self) -> None:
        """Drain: no new jobs, finish or fail the running ones, leave."""
        if self._parts is not None:
            self._parts.reporter.drain()
            await self._parts.jobs.drain(self._config.drain_s)
            await self._parts.reporter.stop()
        await cancel_all(self._tasks)
        if self._parts is not None:
            await self._parts.close()

    async def _answer(self, message: Any, incoming: Incoming) -> Any:  # Any: the topic's unions
        assert self._parts is not None, "listening starts after the parts exist"
        return await answer(self._parts, message, extract(incoming.headers))

    async def _saw_report(self, report: WorkerReport, _incoming: Incoming) -> None:
        assert self._parts is not None, "as above"
        if report.role == "draft" and self._parts.draft_client is not None:
            self._parts.draft_client.saw(report)
