"""Reconcile records with reports, and end what nobody ends: silent workers, passed deadlines."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

import structlog

from slipstream.services.scheduler.answers import LATE, Refusal
from slipstream.services.scheduler.desk import NO_WORKER_S, RETRY_AFTER_MS, Desk
from slipstream.services.scheduler.records import RequestRecord
from slipstream.services.scheduler.succession import ALONE, Succession
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import RemoteError, call
from slipstream.shared.bus.subjects import WORKER_TOPICS
from slipstream.shared.errors import NoRespondersError, SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.reports import (
    HeldSequence,
    ReportRequest,
    WorkerDeath,
    WorkerRecord,
    WorkerReport,
)
from slipstream.shared.scheduling.classes import CLASSES
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.worker.report_book import Attempt

log = structlog.get_logger()

TICK_S = 0.2
_PROBE_S = 0.5
_SERVER_S = 1.0  # what the server's own answer may take
_GRACE_S = 5.0  # absence means nothing for so long after a reconnect
_MAX_UNMENTIONED = 3
_MIN_UNMENTIONED_S = 1.0
_NUM_DEAD = 1024
_OVERDUE_S = 2.0  # how long after the deadline the worker that holds a request may answer itself


class Watch:
    """Takes reports in; ticks."""

    def __init__(self, bus: Bus, fleet: Fleet, desk: Desk, succession: Succession = ALONE) -> None:
        self._bus = bus
        self._fleet = fleet
        self._desk = desk
        self._decode_seen_at = 0.0  # when a decode worker was known last
        self._probing: set[WorkerId] = set()
        self._succession = succession
        # Hears of workers that hold what nobody here has heard of.
        self.on_unknown: Callable[[WorkerId], None] = lambda _worker_id: None
        self._dead: OrderedDict[WorkerId, int] = OrderedDict()  # their epochs, as managers tell

    @property
    def knows_decode_worker(self) -> bool:
        """Whether anybody could answer a request now."""
        return self._fleet.num_open("decode") > 0

    async def report(self, report: WorkerReport) -> None:
        """Take a worker's report as the truth about what it holds."""
        if self._dead.get(report.worker_id) == report.epoch:
            # Said before it died: what it ended is ended, what it held is placed anew.
            for ended in report.ended:
                await self._desk.ended(ended, report.worker_id)
            return
        if not self._fleet.saw(report, time.monotonic()):
            return
        for death in report.deaths:
            self._died(death)
        self._desk.load.saw(report)
        held = {(each.request_id, each.attempt) for each in report.held}
        for each in report.held:
            self._mention(each, report.worker_id)
        if not all(self._desk.knows(each.request_id) for each in report.held):
            self.on_unknown(report.worker_id)
        for ended in report.ended:
            await self._desk.ended(ended, report.worker_id)
        lost = [
            record
            for record in self._desk.held_by(report.worker_id)
            if self._is_unmentioned(record, held)
        ]
        refusal = Refusal("lost", f"worker {report.worker_id} does not know the request")
        for record in lost:
            failing = self._desk.attempt_failed(record, refusal, report.worker_id)
            self._desk.run(failing, record.log_fields)
        self._desk.kick()

    async def meet(self) -> list[WorkerReport]:
        """
        Ask everyone in the registry for a full report, with jobs: a new scheduler knows nothing.

        Prefill workers come first: what they no longer hold has been handed over by then, and is
        told of by who took it.
        """
        try:
            entries = await self._bus.registry().entries()
            records = [decoder_of(WorkerRecord).decode(entry) for entry in entries.values()]
        except SlipstreamError as error:
            log.warning("workers_not_met", error=str(error))
            return []
        first = [each for each in records if each.role == "prefill"]
        others = [each for each in records if each.role != "prefill"]
        met = []
        for group in (first, others):
            asks = [self._meet(each.worker_id, each.role) for each in group]
            met += [report for report in await asyncio.gather(*asks) if report is not None]
        return met

    async def meet_one(self, worker_id: WorkerId) -> WorkerReport | None:
        """Ask a known worker for a full report, with jobs."""
        return await self._meet(worker_id, self._fleet.role(worker_id))

    async def _meet(self, worker_id: WorkerId, role: Role | None) -> WorkerReport | None:
        try:
            report = await self._ask(worker_id, role, with_jobs=True)
        except SlipstreamError as error:
            log.info("worker_not_met", error=str(error))
            return None
        if report is not None:
            await self.report(report)
        return report

    async def tick_loop(self) -> None:
        """Look at the clock for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._tick()
            except Exception:
                log.exception("tick_failed")

    async def _tick(self) -> None:
        now = time.monotonic()
        is_seeing = self._bus.connection.is_settled(_GRACE_S)
        if is_seeing:
            for worker_id in self._fleet.silent(now):
                if worker_id not in self._probing:
                    self._probing.add(worker_id)
                    self._desk.run(self._probe(worker_id))
        if self._fleet.num_open("decode") or not is_seeing:
            self._decode_seen_at = now
        for request_id in self._desk.deadlines.due(now):
            self._end_late(self._desk.records[request_id], now)
        self._desk.deadlines.compact(len(self._desk.records))
        if now - self._decode_seen_at > NO_WORKER_S:
            await self._refuse_without_workers()
        for old in self._desk.load.too_old():
            limit_s = CLASSES[old.request.latency_class].ttft_target_s
            message = f"it waited {limit_s:g} s, by when its class has its first token"
            await self._desk.fail(old, Refusal("overloaded", message, RETRY_AFTER_MS))

    def _end_late(self, record: RequestRecord, now: float) -> None:
        """End a request whose deadline has passed, if its worker doesn't."""
        assert record.deadline.at is not None, "else nobody looks"
        ends_at = record.deadline.at + (0.0 if record.phase == "waiting" else _OVERDUE_S)
        if now >= ends_at:
            self._desk.run(self._desk.give_up(record, LATE), record.log_fields)
        # Also what was given up: should that fail, it is tried again.
        self._desk.deadlines.look_at(record.request_id, max(ends_at, now + _OVERDUE_S))

    async def _refuse_without_workers(self) -> None:
        refusal = Refusal("no_workers", "no decode worker is up", RETRY_AFTER_MS)
        for record in self._desk.load.waiting():
            if record.elapsed_ms / 1000 > NO_WORKER_S:
                await self._desk.fail(record, refusal)

    async def _probe(self, worker_id: WorkerId) -> None:
        """Ask a silent worker; without an answer it is dead."""
        reason = "it has not reported, and can't be asked"
        try:
            report = await self._ask(worker_id, self._fleet.role(worker_id))
            if report is not None:
                await self.report(report)
                return
        except NoRespondersError as error:
            reason = str(error)
        except SlipstreamError as error:
            reason = str(error)
            if not await self._is_heard():
                return
        finally:
            self._probing.discard(worker_id)
        if not self._bus.connection.is_settled(_GRACE_S):
            return  # it was we who were cut off, or were a moment ago
        log.warning("worker_dead", dead_worker_id=worker_id, error=reason)
        self._bury(worker_id)

    async def _is_heard(self) -> bool:
        """Tell whether the server answers: if it doesn't, nobody can be said to be silent."""
        try:
            await self._bus.flush(_SERVER_S)
        except SlipstreamError as error:
            log.warning("nobody_heard", error=str(error))
            return False
        return True

    async def _ask(
        self, worker_id: WorkerId, role: Role | None, *, with_jobs: bool = False
    ) -> WorkerReport | None:
        """Have a worker report; None for a role that can't be asked. Raises as `call`."""
        topic = WORKER_TOPICS.get(role or "")
        if topic is None:
            return None
        request = ReportRequest(self._succession.epoch, with_jobs)
        try:
            report: WorkerReport = await call(
                self._bus, topic, request, timeout_s=_PROBE_S, worker_id=worker_id
            )
        except RemoteError as error:
            self._succession.check(error)
            raise
        return report

    def _bury(self, worker_id: WorkerId) -> None:
        if worker_id in self._fleet.silent(time.monotonic()):  # else it has reported meanwhile
            self._lose(worker_id)

    def _died(self, death: WorkerDeath) -> None:
        """Take a manager's word, which is proof, that a worker's process has ended."""
        if self._dead.get(death.worker_id) == death.epoch:
            return  # told before
        self._dead[death.worker_id] = death.epoch
        while len(self._dead) > _NUM_DEAD:
            self._dead.popitem(last=False)
        for request_id, attempt in death.in_step:
            self._desk.charge(request_id, attempt)
        self._lose(death.worker_id)

    def _lose(self, worker_id: WorkerId) -> None:
        host_id = self._fleet.host_id(worker_id)
        if host_id is not None and self._fleet.role(worker_id) == "kv":
            self._desk.load.prefixes.forget(host_id)
        self._fleet.remove(worker_id)
        refusal = Refusal("worker_lost", f"worker {worker_id} is gone")
        for record in self._desk.held_by(worker_id):
            # Side by side: a worker that hangs keeps each cancel waiting.
            failing = self._desk.attempt_failed(record, refusal, worker_id)
            self._desk.run(failing, record.log_fields)

    def _mention(self, held: HeldSequence, worker_id: WorkerId) -> None:
        record = self._desk.records.get(held.request_id)
        if record is None or record.attempt != held.attempt or record.placement is None:
            return
        if record.is_leaving:
            return
        if worker_id == record.placement.decode_worker_id:
            record.phase = "decoding"
            num_known = held.next_index - len(held.token_ids)
            if num_known <= len(record.token_ids) < held.next_index:
                record.token_ids[num_known:] = held.token_ids
                self._desk.load.generated(record, len(record.token_ids))
            if held.next_index > record.num_given_tokens:
                self._fleet.prompt_done(record.request_id)

    def _is_unmentioned(self, record: RequestRecord, held: set[Attempt]) -> bool:
        """
        Count reports of the holder that don't know the record; some in a row mean it is lost.

        A busy worker sends many while the job is still on its way: they must span some time too.
        """
        if (record.request_id, record.attempt) in held:
            record.num_unmentioned = 0
            return False
        now = time.monotonic()
        if record.num_unmentioned == 0:
            record.unmentioned_at = now
        record.num_unmentioned += 1
        is_long = now - record.unmentioned_at >= _MIN_UNMENTIONED_S
        return record.num_unmentioned >= _MAX_UNMENTIONED and is_long
