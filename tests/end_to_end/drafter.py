"""A draft worker that registers and reports as the real one does, and answers as a test wants."""

import contextlib
from collections.abc import AsyncIterator, Callable

from slipstream.services.cli.nats_server import own_keys
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import DRAFT
from slipstream.shared.ids import new_worker_id
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.common import PROTOCOL_VERSION, Accepted
from slipstream.shared.messages.draft import DraftJob, DraftOpen
from slipstream.shared.messages.reports import Drain, ReportRequest, WorkerRecord
from slipstream.shared.version import VERSION
from slipstream.shared.worker.report_book import ReportBook
from slipstream.shared.worker.reporter import Reporter, new_epoch

# The bytes with which an opening or a job is answered: once, several times, late or never.
Answers = Callable[[DraftOpen | DraftJob], AsyncIterator[bytes]]

_NUM_SEATS = 4096


class Drafter:
    """Stands where a stack of none has its draft worker."""

    def __init__(self, bus: NatsBus, answers: Answers) -> None:
        self.worker_id = new_worker_id("draft")
        self._bus = bus
        self._answers = answers
        record = WorkerRecord(
            worker_id=self.worker_id,
            role="draft",
            epoch=new_epoch(),
            protocol=PROTOCOL_VERSION,
            version=VERSION,
            num_seats=_NUM_SEATS,
        )
        self._reporter = Reporter(bus, record, ReportBook())

    async def start(self) -> None:
        """Listen and report."""
        await self._bus.subscribe(DRAFT.subject(worker_id=self.worker_id), self._take)
        await self._reporter.start()

    async def stop(self) -> None:
        """Leave; from its last report on nobody asks it."""
        self._reporter.drain()
        await self._reporter.stop()

    async def _take(self, incoming: Incoming) -> None:
        match decoder_of(DRAFT.message).decode(incoming.payload):
            case (DraftOpen() | DraftJob()) as message:
                async for payload in self._answers(message):
                    await self._bus.publish(incoming.reply, payload)
            case Drain() | ReportRequest():
                report = self._reporter.report(is_full=True)
                await self._bus.publish(incoming.reply, encode(report))


def accepted(message: DraftOpen) -> bytes:
    """Return what the real one says to an opening."""
    return encode(Accepted(request_id=message.request_id, attempt=message.attempt))


@contextlib.asynccontextmanager
async def drafting(nats_url: str, answers: Answers) -> AsyncIterator[Drafter]:
    """A draft worker while a block runs."""
    keys = own_keys(nats_url)
    assert keys is not None, f"no stack of ours is at {nats_url}"
    bus = await NatsBus.connect(nats_url, "drafter", keys.access("draft"))
    drafter = Drafter(bus, answers)
    try:
        await drafter.start()
        yield drafter
        await drafter.stop()
    finally:
        await bus.close()
