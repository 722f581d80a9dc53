"""The KV manager on the bus: a message in, the lease book's answer out."""

import asyncio
from typing import Any

import structlog

from slipstream.services.kv_manager.host import Host
from slipstream.services.kv_manager.metrics import watch_host
from slipstream.services.kv_manager.reclaimer import Reclaimer
from slipstream.services.kv_manager.verbs import num_blocks_of
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import KV, MANAGER_VERBS
from slipstream.shared.config import KvConfig
from slipstream.shared.ids import WorkerId
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.common import PROTOCOL_VERSION, Role
from slipstream.shared.messages.kv import Adopt, KvRefused, KvRequest, Lease, Release
from slipstream.shared.messages.reports import WorkerRecord
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import SpanKind, Tracer, extract
from slipstream.shared.version import VERSION
from slipstream.shared.worker.report_book import ReportBook
from slipstream.shared.worker.reporter import Reporter

log = structlog.get_logger()

_SPANS = {Lease: names.SPAN_KV_LEASE, Adopt: names.SPAN_KV_ADOPT, Release: names.SPAN_KV_RELEASE}


class KvService:
    """Serves one host."""

    role: Role = "kv"

    def __init__(
        self, config: KvConfig, bus: Bus, tracer: Tracer, worker_id: WorkerId, meter: Meter
    ) -> None:
        self.worker_id = worker_id
        self._config = config
        self._bus = bus
        self._tracer = tracer
        self._meter = meter
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Make the arena, let workers in, listen."""
        host = self.host = await Host.open(self._config, self._bus.connection)
        watch_host(self._meter, host)
        for verb in MANAGER_VERBS:
            subject = KV.subject(host_id=host.host_id, verb=verb)
            await serve(self._bus, subject, KV, self._answer, name=verb)
        pool = host.book.pool
        record = WorkerRecord(
            worker_id=self.worker_id,
            role=self.role,
            epoch=host.epoch,
            protocol=PROTOCOL_VERSION,
            version=VERSION,
            layout=host.layout.fingerprint,
            host_id=host.host_id,
            num_blocks=pool.num_blocks,
        )
        self._reporter = Reporter(self._bus, record, ReportBook(), lambda: pool.num_available)
        host.on_died = self._reporter.died
        await self._reporter.start()
        reclaimer = Reclaimer(self._bus, host.book.pressure)
        loops = [host.sweep_loop(), reclaimer.run(), host.events.loop(self._bus)]
        loops += [host.tier.spill_loop()] if host.tier is not None else []
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def wait(self) -> None:
        """Run until a loop fails, which none ever should."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Leave the registry and take the arena away."""
        if hasattr(self, "_reporter"):
            await self._reporter.stop()
        await cancel_all(self._tasks)
        if hasattr(self, "host"):
            await self.host.close()

    async def _answer(self, message: KvRequest, incoming: Incoming) -> Any:  # Any: a reply union
        context = extract(incoming.headers) if type(message) in _SPANS else None
        if context is None:
            return await self.host.answer(message)
        span = self._tracer.start(
            _SPANS[type(message)],
            parent=context,
            kind=SpanKind.CONSUMER,
            attributes={names.WORKER_ID: self.worker_id, names.HOST_ID: self.host.host_id},
        )
        answer = await self.host.answer(message)
        span.set(names.LEASE_NUM_BLOCKS, num_blocks_of(answer))
        span.end(answer.reason if isinstance(answer, KvRefused) else None)
        return answer
