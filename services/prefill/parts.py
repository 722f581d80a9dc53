"""The parts of a prefill worker, put together."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from slipstream.services.prefill.jobs import PrefillJobs
from slipstream.services.prefill.metrics import PrefillMetrics
from slipstream.services.prefill.steps import PrefillSteps
from slipstream.shared.bus.bus import Bus
from slipstream.shared.config import PrefillConfig
from slipstream.shared.ids import WorkerId
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.draining import Draining
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.report_book import ReportBook
from slipstream.shared.worker.reporter import Reporter


@dataclass
class PrefillParts:
    """Everything a prefill worker is made of."""

    host: WorkerHost
    jobs: PrefillJobs
    steps: PrefillSteps
    reporter: Reporter
    draining: Draining

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return what runs as long as the worker does; each ends only when it can't go on."""
        return (  # Any: a coroutine's send type
            self.steps.run(),
            self.host.keeper.renew_loop(),
            self.host.link.wait_gone(),
            self.draining.wait_drained(),
        )


async def open_parts(
    config: PrefillConfig, bus: Bus, tracer: Tracer, worker: tuple[WorkerId, int], meter: Meter
) -> PrefillParts:
    """Map the arena, load the model and wire the parts."""
    host = await WorkerHost.open(config, bus, worker)
    book = ReportBook()
    metrics = PrefillMetrics(meter)
    record = host.record("prefill", worker, config.num_seats)
    reporter = Reporter(bus, record, book, speeds=host.speeds)
    steps = PrefillSteps(host, config.token_budget, config.prompt_step_ms / 1000, metrics.steps)

    def changed() -> None:
        reporter.changed()
        metrics.steps.activities.recount()

    jobs = PrefillJobs(
        bus,
        tracer,
        host,
        steps,
        book,
        worker,
        config.num_seats,
        changed,
        lambda: reporter.epochs.highest,
    )
    host.keeper.on_lost = jobs.lease_lost
    metrics.watch(jobs, host.engine)
    metrics.steps.activities.count = lambda: (steps.num_stepped, book.num_held)

    def leave() -> None:
        jobs.is_draining = True
        reporter.drain()

    draining = Draining(leave, lambda: jobs.num_running)
    return PrefillParts(host, jobs, steps, reporter, draining)
