"""The prefill worker on the bus."""

import asyncio
from typing import Any

from slipstream.services.prefill.jobs import PrefillJobs
from slipstream.services.prefill.steps import PrefillSteps
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import PREFILL
from slipstream.shared.config import PrefillConfig
from slipstream.shared.ids import LeaseId, WorkerId
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.generate import Cancel
from slipstream.shared.messages.jobs import PrefillJob
from slipstream.shared.messages.reports import ReportRequest
from slipstream.shared.telemetry.context import extract
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.report_book import ReportBook
from slipstream.shared.worker.reporter import Reporter, new_epoch


class PrefillService:
    """Computes prompts into leased blocks and hands the sequences over."""

    role: Role = "prefill"

    def __init__(
        self, config: PrefillConfig, bus: Bus, tracer: Tracer, worker_id: WorkerId
    ) -> None:
        self.worker_id = worker_id
        self._config = config
        self._bus = bus
        self._tracer = tracer
        self._epoch = new_epoch()
        self._tasks: list[asyncio.Task[None]] = []
        self._host: WorkerHost | None = None
        self._jobs: PrefillJobs | None = None
        self._reporter: Reporter | None = None

    async def start(self) -> None:
        """Map the arena, load the model, listen, report."""
        worker = (self.worker_id, self._epoch)
        host = await WorkerHost.open(self._config, self._bus, worker, self._lease_lost)
        self._host = host
        book = ReportBook()
        record = host.record(self.role, worker, self._config.num_seats)
        self._reporter = Reporter(self._bus, record, book)
        steps = PrefillSteps(host, self._config.token_budget, self._config.prompt_step_ms / 1000)
        self._jobs = PrefillJobs(
            self._bus,
            self._tracer,
            host,
            steps,
            book,
            worker,
            self._config.num_seats,
            self._reporter.changed,
        )
        await serve(self._bus, PREFILL.subject(worker_id=self.worker_id), PREFILL, self._answer)
        await self._reporter.start()
        loops = (steps.run(), host.keeper.renew_loop(), host.link.wait_gone())
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def wait(self) -> None:
        """Return when a loop ends: the KV manager is gone, and with it everything held here."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Drain: no new jobs, finish or give up the running ones, leave."""
        if self._reporter is not None:
            self._reporter.drain()
        if self._jobs is not None:
            await self._jobs.drain(self._config.drain_s)
        if self._reporter is not None:
            await self._reporter.stop()
        await cancel_all(self._tasks)
        if self._host is not None:
            await self._host.close()

    async def _answer(self, message: Any, incoming: Incoming) -> Any:  # Any: the topic's unions
        assert self._jobs is not None, "listening starts after the jobs exist"
        assert self._reporter is not None, "as above"
        match message:
            case PrefillJob():
                return self._jobs.accept(message, extract(incoming.headers))
            case Cancel():
                return self._jobs.cancel(message)
            case ReportRequest():
                return self._reporter.report(is_full=True)

    def _lease_lost(self, lease_id: LeaseId) -> None:
        if self._jobs is not None:
            self._jobs.lease_lost(lease_id)
