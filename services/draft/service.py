"""The draft worker on the bus."""

import asyncio
from typing import Any

from slipstream.services.draft.desk import DraftDesk, open_desk
from slipstream.services.draft.metrics import DraftMetrics
from slipstream.services.draft.spans import DraftSpans
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import DRAFT
from slipstream.shared.config import DraftConfig
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.common import PROTOCOL_VERSION, Accepted, Role
from slipstream.shared.messages.draft import DraftClose, DraftJob, DraftOpen
from slipstream.shared.messages.reports import Drain, ReportRequest, WorkerRecord
from slipstream.shared.telemetry.context import extract
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.version import VERSION
from slipstream.shared.worker.draining import Draining
from slipstream.shared.worker.report_book import ReportBook
from slipstream.shared.worker.reporter import Reporter, new_epoch


class DraftService:
    """Proposes tokens; whatever it says, the target decides."""

    role: Role = "draft"

    def __init__(
        self, config: DraftConfig, bus: Bus, tracer: Tracer, worker_id: WorkerId, meter: Meter
    ) -> None:
        self.worker_id = worker_id
        self._bus = bus
        self._config = config
        self._desk: DraftDesk | None = None
        self._metrics = DraftMetrics(meter, lambda: self._desk.num_sequences if self._desk else 0)
        self._spans = DraftSpans(tracer, worker_id, config.max_num_sequences)
        record = WorkerRecord(
            worker_id=worker_id,
            role=self.role,
            epoch=new_epoch(),
            protocol=PROTOCOL_VERSION,
            version=VERSION,
            num_seats=config.max_num_sequences,
        )
        self._reporter = Reporter(bus, record, ReportBook())
        # Nobody waits for a draft worker: it can go as soon as nobody asks it any more.
        self._draining = Draining(self._reporter.drain, lambda: 0)

    async def start(self) -> None:
        """Open what drafts, listen, report."""
        self._desk = await asyncio.to_thread(open_desk, self._config)
        await serve(self._bus, DRAFT.subject(worker_id=self.worker_id), DRAFT, self._answer)
        await self._reporter.start()

    async def wait(self) -> None:
        """Run until it is told to leave. Raises ServiceDrainedError."""
        await self._draining.wait_drained()

    async def stop(self) -> None:
        """Leave; decode workers go on without drafts."""
        self._reporter.drain()
        await self._reporter.stop()
        self._spans.end_all()
        if self._desk is not None:
            await self._desk.shut()

    async def _answer(self, message: Any, incoming: Incoming) -> Any:  # Any: the topic's unions
        assert self._desk is not None, "listening starts after it is there"
        match message:
            case DraftJob():
                answer = await self._desk.propose(message)
                self._metrics.offered(answer)
                return answer
            case DraftOpen():
                await self._desk.open(message)
                self._spans.open(message, extract(incoming.headers))
                return Accepted(
                    request_id=message.request_id,
                    attempt=message.attempt,
                    worker_id=self.worker_id,
                )
            case DraftClose():
                await self._desk.close(message)
                self._spans.close(message)
            case Drain() | ReportRequest():
                if isinstance(message, Drain):
                    self._draining.begin()
                return self._reporter.report(is_full=True)
        return None
