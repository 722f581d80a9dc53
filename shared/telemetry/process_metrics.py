"""The metrics of a process: its meter, and the endpoint where there is one."""

import time
from dataclasses import dataclass
from functools import partial
from typing import Self

import structlog

from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.common import Role
from slipstream.shared.process_memory import swapped_bytes
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter, Readings
from slipstream.shared.telemetry.metrics_endpoint import MetricsEndpoint
from slipstream.shared.telemetry.tally_meter import BothMeters, TallyMeter
from slipstream.shared.version import VERSION

log = structlog.get_logger()


@dataclass(frozen=True)
class ProcessMetrics:
    """Counted is always, for service discovery; distributions for an endpoint only."""

    meter: Meter
    tallies: TallyMeter
    endpoint: MetricsEndpoint | None = None

    @classmethod
    async def open(cls, role: Role, worker_id: WorkerId, host: str, port: int | None) -> Self:
        """Serve metrics on a port, 0 for a free one; None for none. Raises ConfigurationError."""
        tallies = TallyMeter()
        # The client library shows the processor's time by itself, so that it stands here alone.
        tallies.watch(metric_names.PROCESS_CPU, lambda: {(): time.process_time()})
        began_s = time.monotonic()
        uptime = partial(_read_uptime, began_s)
        tallies.watch(metric_names.UPTIME, uptime)
        if port is None:
            return cls(tallies, tallies)
        # Imported here: it takes two megabytes, which no other process shall hold.
        from slipstream.shared.telemetry.prometheus_meter import (  # noqa: PLC0415 - loaded only where there is an endpoint
            CONTENT_TYPE,
            PrometheusMeter,
        )

        meter = PrometheusMeter()
        meter.watch(metric_names.INFO, lambda: {(role, worker_id, VERSION): 1})
        meter.watch(metric_names.PROCESS_SWAP, _read_swap)
        meter.watch(metric_names.UPTIME, uptime)
        endpoint = await MetricsEndpoint.open(meter.render, CONTENT_TYPE, host, port)
        log.info("metrics_served", url=endpoint.url)
        return cls(BothMeters(tallies, meter), tallies, endpoint)

    @property
    def url(self) -> str | None:
        """Where they are read."""
        return self.endpoint.url if self.endpoint is not None else None

    async def close(self) -> None:
        """Be read no more."""
        if self.endpoint is not None:
            await self.endpoint.close()


def _read_uptime(began_s: float) -> Readings:
    return {(): time.monotonic() - began_s}


def _read_swap() -> Readings:
    num_bytes = swapped_bytes()
    return {} if num_bytes is None else {(): num_bytes}
