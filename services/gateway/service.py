"""The gateway: HTTP on one side, the bus on the other."""

import asyncio

from slipstream.services.gateway.app import make_app
from slipstream.services.gateway.gateway import Gateway, open_gateway
from slipstream.services.gateway.http_server import ConnectionLimits, HttpServer
from slipstream.services.gateway.metrics import GatewayMetrics
from slipstream.shared.bus.bus import Bus
from slipstream.shared.config import GatewayConfig
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.common import Role
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter
from slipstream.shared.telemetry.tally_meter import BothMeters
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.tls import http_tls
from slipstream.shared.version import VERSION

_STOP_S = 2.0


class GatewayService:
    """Serves the OpenAI-compatible API."""

    role: Role = "gateway"

    def __init__(
        self,
        config: GatewayConfig,
        bus: Bus,
        tracer: Tracer,
        worker_id: WorkerId,
        meter: Meter,
    ) -> None:
        self.worker_id = worker_id
        self._config = config
        self._bus = bus
        self._tracer = tracer
        self._own_meter = self._make_meter()
        self._meter = BothMeters(meter, self._own_meter)
        self._gateway: Gateway | None = None
        self._server: HttpServer | None = None

    @property
    def http_url(self) -> str | None:
        """Where it serves; None until it does."""
        return self._server.url if self._server is not None else None

    async def start(self) -> None:
        """Read the tokenizer, listen to the bus, then to clients."""
        tls = await asyncio.to_thread(http_tls, self._config)
        metrics = GatewayMetrics(self._meter)
        gateway = await open_gateway(self._config, self._bus, self._tracer, metrics)
        metrics.watch(lambda: gateway.num_running, lambda: gateway.room.num_dropped_frames)
        await gateway.start()
        await self._bus.flush()
        self._gateway = gateway
        config = self._config
        app = make_app(gateway, self._own_meter)
        limits = ConnectionLimits(stall_s=config.stall_timeout_s)
        server = HttpServer(app, config.http_host, config.http_port, limits, tls)
        await server.start()
        self._server = server

    async def wait(self) -> None:
        """Run until the server fails, which it should not."""
        assert self._server is not None, "started before it is waited for"
        await self._server.wait()

    async def stop(self) -> None:
        """Take no new connection, finish what runs within the drain time, let go."""
        if self._server is not None:
            self._server.refuse_connections()
        if self._gateway is not None:
            await self._gateway.drain(self._config.drain_s)
        if self._server is not None:
            await self._server.stop(_STOP_S)
        if self._gateway is not None:
            await self._gateway.finish()

    def _make_meter(self) -> PrometheusMeter:
        """Return a meter for /metrics of what is the gateway's own."""
        meter = PrometheusMeter()
        meter.watch(metric_names.INFO, lambda: {(self.role, self.worker_id, VERSION): 1})
        return meter
