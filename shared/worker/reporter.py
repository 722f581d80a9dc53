"""Publish a worker's reports and keep its record in the registry."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.subjects import REPORT
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.kv.kv_class import KvClass
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.jobs import DecodeJob, PrefillJob
from slipstream.shared.messages.reports import WorkerDeath, WorkerRecord, WorkerReport
from slipstream.shared.rarely import Rarely
from slipstream.shared.worker.epoch_gate import EpochGate
from slipstream.shared.worker.report_book import ReportBook
from slipstream.shared.worker.throughput import Speeds

log = structlog.get_logger()

REPORT_S = 0.3
# Changes come in bursts, a step's or a second's many requests: a report tells of all of them. At
# 200 requests a second the scheduler takes a twelfth less of its core than with half of this.
_MIN_REPORT_S = 0.01
RECORD_S = 2.0
_REPORT_ROOM = 1024 * 1024  # of a message, for all but jobs
_OUTAGE_S = 5.0  # between two reports that are held back while NATS is away


class Reporter:
    """Reports every 300 ms and at each change, the record every 2 s."""

    def __init__(
        self,
        bus: Bus,
        record: WorkerRecord,
        book: ReportBook,
        num_free_blocks: Callable[[], int] = lambda: 0,
        speeds: Speeds | None = None,
    ) -> None:
        self.record = record
        self.book = book
        self.epochs = EpochGate()
        self._bus = bus
        self._num_free_blocks = num_free_blocks
        self._speeds = speeds or Speeds()
        self._number = 0
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._rarely = Rarely()

    async def start(self) -> None:
        """Put the record, send the first report and go on. Reports alone are enough to be known."""
        # Without the bucket, which the scheduler makes, reports alone tell of us for a moment.
        is_put = await self._put_record()
        await self.publish(is_full=True)
        self._tasks = [
            asyncio.create_task(self._report_loop()),
            asyncio.create_task(self._record_loop(is_put=is_put)),
        ]

    async def stop(self) -> None:
        """Say the last word, then leave the registry."""
        await cancel_all(self._tasks)
        with contextlib.suppress(SlipstreamError):
            await self.publish(is_full=True)
        with contextlib.suppress(SlipstreamError):
            await self._bus.registry().delete(self.record.worker_id)

    def drain(self) -> None:
        """Take no more work: from the next report on nobody places any here."""
        self.record = msgspec.structs.replace(self.record, is_draining=True)
        self.changed()

    def changed(self) -> None:
        """Have the next report sent at once."""
        self._changed.set()

    def died(self, death: WorkerDeath) -> None:
        """Tell of a worker's end: nobody need wait for its silence to count."""
        self.book.died(death)
        self.changed()

    def report(self, *, is_full: bool) -> WorkerReport:
        """Return the next report."""
        self._number += 1
        held, ended = self.book.take(is_full=is_full)
        record = self.record
        return WorkerReport(
            worker_id=record.worker_id,
            role=record.role,
            epoch=record.epoch,
            number=self._number,
            num_seats=record.num_seats,
            num_free_seats=max(0, record.num_seats - self.book.num_held),
            num_free_blocks=self._num_free_blocks(),
            num_blocks=record.num_blocks,
            host_id=record.host_id,
            scheduler_epoch=self.epochs.highest,
            is_full=is_full,
            is_draining=record.is_draining,
            held=held,
            ended=ended,
            kv_class=str(KvClass(record.model_fingerprint, record.layout, record.numerics)),
            prompt_tokens_per_s=self._speeds.prompts.tokens_per_s,
            pulled_tokens_per_s=self._speeds.pulls.tokens_per_s,
            deaths=self.book.take_deaths(),
        )

    def report_with_jobs(self, jobs: Sequence[PrefillJob | DecodeJob]) -> WorkerReport:
        """Return a full report with the jobs of what is held, as many as fit into a message."""
        told: list[PrefillJob | DecodeJob] = []
        num_bytes_left = self._bus.max_payload - _REPORT_ROOM
        for job in jobs:
            num_bytes_left -= len(encode(job))
            if num_bytes_left < 0:
                log.warning("jobs_not_told", num_jobs=len(jobs) - len(told))
                break
            told.append(job)
        return msgspec.structs.replace(self.report(is_full=True), jobs=told)

    async def publish(self, *, is_full: bool = False) -> None:
        """Send a report now."""
        payload = encode(self.report(is_full=is_full))
        await self._bus.publish(REPORT.subject(worker_id=self.record.worker_id), payload)

    async def _put_record(self) -> bool:
        """Write the record, if there is a registry: it is for discovery only."""
        try:
            await self._bus.registry().put(self.record.worker_id, encode(self.record))
        except SlipstreamError as error:
            num_held = self._rarely.is_due("record")
            if num_held is not None:
                log.warning("record_not_put", error=str(error), num_held_back=num_held)
            return False
        return True

    async def _report_loop(self) -> None:
        is_full = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await self._changed.wait()
            await asyncio.sleep(_MIN_REPORT_S)
            self._changed.clear()
            connection = self._bus.connection
            if not connection.is_up:
                # What is told late is told at once, and whole.
                await connection.wait_up(_OUTAGE_S)
                is_full = True
            try:
                await self.publish(is_full=is_full)
                is_full = False
            except Exception as error:  # noqa: BLE001 # a report must never be the last one
                if (num_held := self._rarely.is_due("report")) is not None:
                    log.warning("report_failed", error=str(error), num_held_back=num_held)

    async def _record_loop(self, *, is_put: bool) -> None:
        while True:
            await asyncio.sleep(RECORD_S if is_put else REPORT_S)
            is_put = await self._put_record() or is_put


def new_epoch() -> int:
    """Return the epoch of this start of a process: milliseconds of Unix time, so it only grows."""
    return time.time_ns() // 1_000_000
