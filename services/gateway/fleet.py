"""Who is there to serve requests: a scheduler, and a decode worker."""

import asyncio
import time

from slipstream.services.gateway.shapes import Readiness
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import call, serve
from slipstream.shared.bus.subjects import CANCEL, REPORT
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import RequestId, WorkerId, new_request_id
from slipstream.shared.messages.generate import Cancel
from slipstream.shared.messages.reports import WorkerReport

_FRESH_S = 2.0  # workers report three times a second
_ASK_S = 1.0
_KNOWN_S = 1.0  # how long a scheduler's word counts, however many want to know


class FleetWatch:
    """Listens to workers' reports; asks for a scheduler when somebody wants to know."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._heard_at: dict[WorkerId, float] = {}
        self._asking = asyncio.Lock()
        self._has_scheduler = False
        self._asked_at = float("-inf")

    async def start(self) -> None:
        """Listen."""
        await serve(self._bus, REPORT.wildcard, REPORT, self._report)

    async def readiness(self) -> Readiness:
        """Return who is there now."""
        has_scheduler = await self.has_scheduler()
        has_decode_worker = self.has_decode_worker(time.monotonic())
        return Readiness(
            is_ready=has_scheduler and has_decode_worker,
            scheduler=has_scheduler,
            decode_worker=has_decode_worker,
        )

    def has_decode_worker(self, now: float) -> bool:
        """Tell whether one that takes work has been heard of late."""
        self._heard_at = {
            worker_id: heard_at
            for worker_id, heard_at in self._heard_at.items()
            if now - heard_at <= _FRESH_S
        }
        return bool(self._heard_at)

    async def _report(self, report: WorkerReport, _incoming: Incoming) -> None:
        if report.role != "decode":
            return
        if report.is_draining:
            self._heard_at.pop(report.worker_id, None)
        else:
            self._heard_at[report.worker_id] = time.monotonic()

    async def has_scheduler(self) -> bool:
        """Tell whether a scheduler answers, or has done a moment ago."""
        async with self._asking:  # who comes meanwhile hears what this one is told
            if time.monotonic() - self._asked_at >= _KNOWN_S:
                self._has_scheduler = await self._ask()
                self._asked_at = time.monotonic()
            return self._has_scheduler

    async def _ask(self) -> bool:
        """Ask about a request that nobody has: only a scheduler that serves answers."""
        unknown: RequestId = new_request_id()
        try:
            await call(
                self._bus,
                CANCEL,
                Cancel(request_id=unknown, reason="probe"),
                timeout_s=_ASK_S,
                request_id=unknown,
            )
        except SlipstreamError:
            return False
        return True
