"""Listen to a running stack, and ask its services what they count."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from slipstream.services.cli.top_model import TopModel
from slipstream.services.cli.top_snapshot import Snapshot
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.discovery import Stats
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import DISCOVERY_STATS, EVENT, REPORT
from slipstream.shared.messages.reports import KvEvent, PhaseEvent, WorkerReport
from slipstream.shared.worker.reporter import REPORT_S

_decode_stats = msgspec.json.Decoder(Stats).decode


class TopWatch:
    """Feeds a model from the bus."""

    def __init__(self, bus: Bus, now: Callable[[], float] = time.monotonic) -> None:
        self.model = TopModel()
        self._bus = bus
        self._now = now
        self._inbox = bus.new_inbox()

    async def start(self) -> None:
        """Listen, and ask for the first time."""
        await self._bus.subscribe(self._inbox, self._stats)
        await serve(self._bus, REPORT.wildcard, REPORT, self._report)
        await serve(self._bus, EVENT.subject(role="kv"), EVENT, self._event)
        await self._ask()

    async def snapshots(self, interval_s: float) -> AsyncGenerator[Snapshot, None]:
        """Yield what is known at the end of each interval."""
        # By the first one every worker shall have said something.
        await asyncio.sleep(max(0.0, 2 * REPORT_S - interval_s))
        while True:
            # Asked a little before: the answers have to come.
            await asyncio.sleep(interval_s * 3 / 4)
            await self._ask()
            await asyncio.sleep(interval_s / 4)
            self.model.tick(self._now())
            yield self.model.snapshot(self._now())

    async def _ask(self) -> None:
        await self._bus.publish(DISCOVERY_STATS, b"", reply=self._inbox)

    async def _stats(self, incoming: Incoming) -> None:
        try:
            self.model.saw_stats(_decode_stats(incoming.payload), self._now())
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # somebody else's service, or nobody's

    async def _report(self, report: WorkerReport, _incoming: Incoming) -> None:
        self.model.saw_report(report, self._now())

    async def _event(self, event: KvEvent | PhaseEvent, _incoming: Incoming) -> None:
        if isinstance(event, KvEvent):
            self.model.saw_kv_event(event, self._now())
