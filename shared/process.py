"""The frame of every service process: logs, traces, metrics, the bus around the service itself."""

import asyncio
import os
from collections.abc import Callable

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.discovery import Discovery, Identity
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.config import ServiceConfig
from slipstream.shared.ids import WorkerId, new_worker_id
from slipstream.shared.lifecycle import PRIVATE_UMASK, Service, cancel_all, run_service
from slipstream.shared.messages.common import Role
from slipstream.shared.process_memory import give_back, share_one_heap
from slipstream.shared.telemetry.logging import configure_logging
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.process_metrics import ProcessMetrics
from slipstream.shared.telemetry.tracing import Tracer, create_tracer
from slipstream.shared.version import VERSION

Make = Callable[[Bus, Tracer, WorkerId, Meter], Service]

_FLUSH_S = 1.0


class _Framed:
    """A service whose bus, tracer and metrics live exactly as long as it does."""

    def __init__(self, role: Role, worker_id: WorkerId, config: ServiceConfig, make: Make) -> None:
        self.role: Role = role
        self.worker_id = worker_id
        self._config = config
        self._make = make
        self._tracer: Tracer | None = None
        self._bus: NatsBus | None = None
        self._metrics: ProcessMetrics | None = None
        self._service: Service | None = None
        self._discovery: Discovery | None = None

    @property
    def metrics_url(self) -> str | None:
        return self._metrics.url if self._metrics is not None else None

    @property
    def http_url(self) -> str | None:
        return getattr(self._service, "http_url", None)

    @property
    def detail(self) -> str:
        return str(getattr(self._service, "detail", ""))

    async def start(self) -> None:
        config = self._config
        # First: a port that is taken is better known before a model is loaded.
        self._metrics = await ProcessMetrics.open(
            self.role, self.worker_id, config.metrics_host, config.metrics_port
        )
        self._tracer = create_tracer(f"slipstream-{self.role}", self.worker_id, os.environ)
        self._bus = await NatsBus.connect(config.nats_url, self.worker_id, config.nats_access)
        self._service = self._make(self._bus, self._tracer, self.worker_id, self._metrics.meter)
        await self._service.start()
        await self._bus.flush()
        # Deaf on one of its subjects it would look alive and answer nobody.
        self._bus.check_listening()
        self._discovery = Discovery(self._bus, self._identity(), self._metrics.tallies.read)
        await self._discovery.start()
        give_back()

    async def wait(self) -> None:
        assert self._service is not None, "started before it is waited for"
        assert self._bus is not None, "as above"
        endings = [
            asyncio.create_task(self._service.wait()),
            asyncio.create_task(self._bus.wait_lost()),
        ]
        try:
            done, _ = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
            for ending in done:
                ending.result()
        finally:
            await cancel_all(endings)

    async def stop(self) -> None:
        if self._discovery is not None:
            await self._discovery.stop()
        if self._service is not None:
            await self._service.stop()
        if self._bus is not None:
            await self._bus.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.shutdown, _FLUSH_S)
        if self._metrics is not None:
            await self._metrics.close()

    def _identity(self) -> Identity:
        return Identity(
            name=f"slipstream-{self.role}",
            id=self.worker_id,
            version=VERSION,
            description=f"The {self.role} of Slipstream",
            metadata={"role": self.role, "pid": str(os.getpid())},
        )


def run_process(role: Role, config: ServiceConfig, make: Make) -> int:
    """Run a service in this process until a signal; return the exit status."""
    os.umask(PRIVATE_UMASK)
    share_one_heap()
    worker_id = new_worker_id(role)
    configure_logging(
        f"slipstream-{role}",
        worker_id,
        level=config.log_level.upper(),
        json=config.is_log_json,
    )
    return run_service(lambda: _Framed(role, worker_id, config, make), config.status_file)
