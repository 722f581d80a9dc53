"""The requests of this scheduler from arrival to ending: queue, attempts, cancels, closing."""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable

import structlog

from slipstream.services.scheduler.answers import CRASHED, LATE, Answers, Refusal
from slipstream.services.scheduler.attempt_spans import start_attempt, tell_schedule
from slipstream.services.scheduler.blame import NOBODYS_FAULT, who_failed
from slipstream.services.scheduler.deadlines import Deadlines
from slipstream.services.scheduler.dispatch import Dispatcher
from slipstream.services.scheduler.errands import Errands
from slipstream.services.scheduler.fitting import too_large, unlike
from slipstream.services.scheduler.load import Load
from slipstream.services.scheduler.metrics import SchedulerMetrics
from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import NoRespondersError, SlipstreamError
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.common import Phase, Rejected
from slipstream.shared.messages.generate import REPLACED, Cancel, Cancelled
from slipstream.shared.messages.reports import EndedSequence
from slipstream.shared.scheduling.failures import FINAL_CODES, LOSS_CODES
from slipstream.shared.scheduling.placed import Placement
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.spans import Span
from slipstream.shared.telemetry.tracing import Tracer

log = structlog.get_logger()

NO_WORKER_S = 10.0  # how long a request waits for a first decode worker to appear
RETRY_AFTER_MS = 1000
_DRAINING = Refusal("draining", "the scheduler is shutting down", RETRY_AFTER_MS)
_NUM_CLOSED = 4096
_REST_S = 0.05
_NUM_AT_A_TIME = 32
_BLOCKED_REST_S = 0.002


class Desk:
    """Owns the records and the waiting queue."""

    def __init__(
        self,
        config: SchedulerConfig,
        tracer: Tracer,
        load: Load,
        answers: Answers,
        dispatcher: Dispatcher,
        block_size: int,
        metrics: SchedulerMetrics,
    ) -> None:
        self._block_size = block_size
        self._config = config
        self._tracer = tracer
        self.load = load
        self._fleet = load.fleet
        self._answers = answers
        self._dispatcher = dispatcher
        self._metrics = metrics
        self.records: dict[RequestId, RequestRecord] = {}
        self._placed: defaultdict[WorkerId, set[RequestRecord]] = defaultdict(set)
        self.deadlines = Deadlines(self.records.__contains__)
        self._closed: OrderedDict[RequestId, WorkerId | None] = OrderedDict()
        self._placeable = asyncio.Event()
        # Hears of each record that is closed, with the code of its failure, if any.
        self.on_closed: Callable[[RequestRecord, str | None], None] = lambda _record, _code: None
        self._errands = Errands()
        self.run = self._errands.run

    def open(self, record: RequestRecord) -> None:
        """Let an admitted request wait for its turn."""
        self.records[record.request_id] = record
        if record.deadline.at is not None:
            self.deadlines.look_at(record.request_id, record.deadline.at)
        if (refusal := too_large(record, self._fleet.max_num_blocks, self._block_size)) is not None:
            self.run(self.fail(record, refusal), record.log_fields)
            return
        self.load.add(record)
        self._placeable.set()

    def adopt(self, record: RequestRecord, choice: Placement, phase: Phase, span: Span) -> None:
        """Take over an attempt that workers hold already, of a record that is new or waits."""
        self.load.remove(record.request_id)
        self.records[record.request_id] = record
        if record.deadline.at is not None:
            self.deadlines.look_at(record.request_id, record.deadline.at)
        is_computed = phase == "decoding"
        num_tokens = 0 if is_computed else len(record.request.prompt_token_ids)
        self._fleet.assign(record.request_id, choice, num_tokens)
        self._hold(record, choice)
        record.phase = phase
        record.attempt_span = span
        if is_computed:
            self._fleet.prompt_done(record.request_id)

    def knows(self, request_id: RequestId) -> bool:
        """Tell whether a request is open, or has ended here lately."""
        return request_id in self.records or request_id in self._closed

    async def abandon(self) -> None:
        """Let go of everything and tell nobody: another scheduler answers."""
        await self._errands.cancel()
        self.records.clear()

    def held_by(self, worker_id: WorkerId) -> list[RequestRecord]:
        """Return the records that a worker should know of now."""
        return [each for each in self._placed.get(worker_id, ()) if each.holder == worker_id]

    def kick(self) -> None:
        """Something changed that may let a waiting request run."""
        self._placeable.set()

    def last_holder(self, request_id: RequestId) -> WorkerId | None:
        """Return which decode worker has, or had lately, the stream of a request."""
        record = self.records.get(request_id)
        if record is None:
            return self._closed.get(request_id)
        return record.placement.decode_worker_id if record.placement is not None else None

    async def place_loop(self) -> None:
        """Place waiting requests for ever."""
        while True:
            await self._placeable.wait()
            self._placeable.clear()
            num_placed = 0
            while (record := self._place_next()) is not None:
                self.run(self._dispatch(record, record.attempt), record.log_fields)
                num_placed += 1
                if num_placed % _NUM_AT_A_TIME == 0:
                    await asyncio.sleep(0)
            if not num_placed and len(self.load.queue):
                # Nobody has room: reports by the hundred don't make it come sooner.
                await asyncio.sleep(_BLOCKED_REST_S)

    async def cancel(self, message: Cancel) -> Cancelled:
        """End a request in whatever phase it is. Idempotent."""
        record = self.records.get(message.request_id)
        if record is None:
            phase: Phase = "ended" if message.request_id in self._closed else "unknown"
            return Cancelled(request_id=message.request_id, phase=phase)
        phase = record.phase
        record.is_cancelled = True
        if self.load.remove(record.request_id):
            await self.fail(record, Refusal("cancelled", "the request was cancelled"))
        else:
            await self._dispatcher.cancel(record, message.reason)
        return Cancelled(request_id=message.request_id, phase=phase)

    async def ended(self, ended: EndedSequence, worker_id: WorkerId) -> None:
        """Take a worker's word that it let go of an attempt."""
        record = self.records.get(ended.request_id)
        if record is None or ended.attempt > record.attempt:
            return
        if ended.attempt < record.attempt and ended.attempt not in record.late_attempts:
            record.late_attempts.add(ended.attempt)
            self._metrics.was_late()
        if ended.was_answered:
            # Of an older attempt: its client needs no second ending.
            if ended.attempt == record.attempt or await self._let_go(record):
                self._close(record, ended)
            return
        if record.attempt != ended.attempt or record.phase == "waiting" or record.is_leaving:
            return
        choice = record.placement
        if ended.code is None and choice is not None and choice.prefill_worker_id == worker_id:
            if record.phase == "prefilling":
                record.phase = "decoding"
                record.num_unmentioned = 0
                self._fleet.prompt_done(record.request_id)
            return
        at_fault = who_failed(ended.code or "", choice, worker_id)
        if ended.code == NoRespondersError.code and at_fault is not None:
            self._fleet.suspect(at_fault)
        await self.attempt_failed(record, Refusal(ended.code or "lost", ended.message), at_fault)

    async def attempt_failed(
        self, record: RequestRecord, refusal: Refusal, worker_id: WorkerId | None
    ) -> None:
        """Try again elsewhere where that can help and nobody sees a difference, else say so."""
        is_known = self.records.get(record.request_id) is record
        if not is_known or record.phase == "waiting" or record.is_leaving:
            return  # it was told before, by another way
        if refusal.code in NOBODYS_FAULT:
            if worker_id is not None:
                self._fleet.told_full(worker_id)
        else:
            record.num_failures += refusal.code not in LOSS_CODES
            if worker_id is not None:
                record.avoid.add(worker_id)
        if record.is_cancelled:
            refusal = Refusal("cancelled", "the request was cancelled")
        elif record.has_crashed_workers:
            refusal = CRASHED
        elif (
            refusal.code not in FINAL_CODES
            and not record.may_have_shown_tokens(refusal.code)
            and record.num_failures < self._config.max_num_attempts
            and not record.deadline.is_over
        ):
            await self._retry(record, refusal)
            return
        elif record.deadline.is_over and refusal.code in NOBODYS_FAULT:
            refusal = LATE  # with more time there would have been another turn
        await self.give_up(record, refusal)

    def charge(self, request_id: RequestId, attempt: int) -> None:
        """Take note that a worker died in a step of an attempt, which may have been the reason."""
        record = self.records.get(request_id)
        if record is None or attempt > record.attempt:
            return
        record.charged_attempts.add(attempt)
        log.warning("death_charged", **record.log_fields, num_charges=len(record.charged_attempts))
        if record.has_crashed_workers and attempt < record.attempt:  # known late whose step it was
            self.run(self.give_up(record, CRASHED), record.log_fields)

    async def fail(self, record: RequestRecord, refusal: Refusal) -> None:
        """Answer a request that no worker will answer, and close it."""
        if self.records.get(record.request_id) is not record:
            return
        self._close(record, None, refusal)
        await self._answers.fail(record, refusal)
        self._metrics.failed(refusal.code)

    async def give_up(self, record: RequestRecord, refusal: Refusal) -> None:
        """End a request that may still run somewhere: its workers let go, then it is answered."""
        if not record.is_leaving and await self._let_go(record):
            await self.fail(record, refusal)

    async def drain(self, timeout_s: float) -> None:
        """
        Refuse what waits or is prefilled: nobody else could answer if that fails from here on.

        Streams that decode belong to their workers and go on.
        """
        await self._refuse_waiting()
        prefilling = [each for each in self.records.values() if each.phase == "prefilling"]
        for record in prefilling:
            self.run(self.give_up(record, _DRAINING), record.log_fields)
        await self._errands.wait(timeout_s)
        await self._refuse_waiting()  # attempts that failed meanwhile

    async def _refuse_waiting(self) -> None:
        for record in self.load.waiting():
            await self.fail(record, _DRAINING)

    def _place_next(self) -> RequestRecord | None:
        """Begin an attempt at the next request that has somewhere to go."""
        while (placed := self.load.next()) is not None:
            record = placed.record
            kv_class = self._fleet.view(placed.placement.decode_worker_id).kv_class
            refusal = too_large(record, self._fleet.max_num_blocks, self._block_size)
            refusal = refusal or unlike(record, kv_class)
            if refusal is None:
                self._begin_attempt(record, placed.placement)
                return record
            self._fleet.unassign(record.request_id)
            self.run(self.fail(record, refusal), record.log_fields)
        return None

    def _begin_attempt(self, record: RequestRecord, choice: Placement) -> None:
        record.attempt += 1
        self._hold(record, choice)
        record.phase = "prefilling" if choice.prefill_worker_id is not None else "decoding"
        record.is_replayed_alike = self._fleet.is_exact(choice.decode_worker_id)
        record.is_on_its_way = True
        # With logprobs from the start: reports don't carry those of earlier attempts.
        keeps_output = record.request.sampling.num_logprobs is None
        record.num_given_tokens = len(record.token_ids) if keeps_output else 0
        record.queue_ms = record.elapsed_ms
        self._metrics.placed(choice)
        if record.attempt == 1:
            self._metrics.began(record.queue_ms / 1000)
        record.attempt_span = start_attempt(self._tracer, record, choice)
        queue = self.load.queue
        tell_schedule(self._tracer, record, choice, queue.policy, len(queue))

    def _hold(self, record: RequestRecord, choice: Placement) -> None:
        record.placement = choice
        record.kv_class = self._fleet.view(choice.decode_worker_id).kv_class
        for worker_id in choice.worker_ids:
            self._placed[worker_id].add(record)
        record.is_leaving = False
        record.num_unmentioned = 0

    async def _dispatch(self, record: RequestRecord, attempt: int) -> None:
        choice = record.placement
        if choice is None or record.attempt != attempt:
            return  # it was over before it was sent
        first = choice.prefill_worker_id or choice.decode_worker_id
        refusal: Refusal | None = None
        try:
            answer = await self._dispatcher.send(record)
        except SlipstreamError as error:
            if isinstance(error, NoRespondersError):
                self._fleet.suspect(first)
            refusal = Refusal(error.code, str(error))
        except Exception as error:
            log.exception("dispatch_failed", **record.log_fields | {"attempt": attempt})
            refusal = Refusal("internal_error", type(error).__name__)
        else:
            if isinstance(answer, Rejected):
                refusal = Refusal(f"worker_{answer.reason}", answer.message)
        if record.attempt != attempt:
            return
        record.is_on_its_way = False
        if refusal is not None:
            await self.attempt_failed(record, refusal, first)
        elif record.is_cancelled:
            # The cancel may have overtaken the job on the way.
            await self._dispatcher.cancel(record, "client")

    async def _retry(self, record: RequestRecord, refusal: Refusal) -> None:
        log.info(
            "attempt_failed",
            **record.log_fields,
            code=refusal.code,
            message=refusal.message,
        )
        if not await self._let_go(record):
            return
        if record.is_cancelled:
            await self.fail(record, Refusal("cancelled", "the request was cancelled"))
            return
        self._leave_attempt(record, refusal.code)
        record.phase = "waiting"
        record.is_leaving = False
        self.load.add(record, is_first=True)
        # Workers say when a seat is free; a moment's rest keeps a full one from being asked again.
        asyncio.get_running_loop().call_later(_REST_S, self._placeable.set)

    async def _let_go(self, record: RequestRecord) -> bool:
        """Take an attempt back from its workers; False when the request has its ending by then."""
        record.is_leaving = True
        answers = await self._dispatcher.cancel(record, REPLACED)
        if self.records.get(record.request_id) is not record:
            return False
        if any(answer.was_ended_here for answer in answers):
            # The worker has answered the client, or is about to; only its report was lost.
            self._close(record, None)
            return False
        return True

    def _leave_attempt(self, record: RequestRecord, error: str | None) -> None:
        if record.placement is not None:
            self._fleet.unassign(record.request_id)
            for worker_id in record.placement.worker_ids:
                self._placed[worker_id].discard(record)
                if not self._placed[worker_id]:
                    del self._placed[worker_id]
            record.placement = None
        if record.attempt_span is not None:
            record.attempt_span.end(error)
            record.attempt_span = None

    def _close(
        self,
        record: RequestRecord,
        ended: EndedSequence | None,
        refusal: Refusal | None = None,
    ) -> None:
        """Forget the record; one canonical line says how it went."""
        del self.records[record.request_id]
        self.load.remove(record.request_id)
        choice = record.placement
        self._closed[record.request_id] = choice.decode_worker_id if choice is not None else None
        while len(self._closed) > _NUM_CLOSED:
            self._closed.popitem(last=False)
        code = refusal.code if refusal is not None else ended.code if ended is not None else None
        usage = ended.usage if ended is not None else None
        if ended is not None:
            self.load.ended(record, ended)
        self._leave_attempt(record, code)
        if usage is not None:
            record.root.set(names.GEN_AI_USAGE_INPUT_TOKENS, usage.num_prompt_tokens)
            record.root.set(names.GEN_AI_USAGE_OUTPUT_TOKENS, usage.num_output_tokens)
        if ended is not None and ended.finish_reason is not None:
            record.root.set(names.GEN_AI_RESPONSE_FINISH_REASONS, [ended.finish_reason])
        record.root.end(code)
        self.on_closed(record, code)
        log.info(
            "request_ended",
            **record.log_fields,
            code=code,
            finish_reason=ended.finish_reason if ended is not None else None,
            route=choice.route if choice is not None else None,
            num_prompt_tokens=len(record.request.prompt_token_ids),
            num_cached_tokens=usage.num_cached_tokens if usage is not None else None,
            num_output_tokens=usage.num_output_tokens if usage is not None else None,
            queue_ms=round(record.queue_ms, 1),
            ttft_ms=round(ended.ttft_ms, 1) if ended is not None else None,
            total_ms=round((time.monotonic() - record.arrived_at) * 1000, 1),
        )
        self._placeable.set()
