"""The sequences of a decode worker from their job to their ending."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import structlog

from slipstream.services.decode import intake
from slipstream.services.decode.commits import BlockCommits
from slipstream.services.decode.echo import echoed_prompt
from slipstream.services.decode.endings import DRAINING, error_code, is_answered
from slipstream.services.decode.metrics import DecodeMetrics
from slipstream.services.decode.publisher import StreamPublisher
from slipstream.services.decode.pulls import RemotePulls
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.span_attributes import describe
from slipstream.services.decode.steps import DecodeSteps, Drafts
from slipstream.services.decode.stopping import Ending
from slipstream.shared.bus.bus import Bus
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import LeaseId, WorkerId
from slipstream.shared.messages.common import (
    Accepted,
    Failed,
    Phase,
    Rejected,
    RejectionReason,
    Timings,
)
from slipstream.shared.messages.generate import REPLACED, Cancel, Cancelled
from slipstream.shared.messages.jobs import DecodeJob
from slipstream.shared.messages.kv import Prefilled
from slipstream.shared.model.detokenizer import Vocabulary
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.telemetry.logging import request_fields
from slipstream.shared.telemetry.spans import SpanKind
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.leasing import JobEndedError, Leasing
from slipstream.shared.worker.report_book import Attempt, ReportBook
from slipstream.shared.worker.tombstones import Tombstones

log = structlog.get_logger()

_KEEP_S = 60.0


class DecodeJobs:
    """Owns every sequence of this worker; the steps borrow them."""

    def __init__(
        self,
        bus: Bus,
        tracer: Tracer,
        host: WorkerHost,
        vocabulary: Vocabulary,
        publisher: StreamPublisher,
        drafts: Drafts | None,
        book: ReportBook,
        worker: tuple[WorkerId, int],
        num_seats: int,
        changed: Callable[[], None],
        metrics: DecodeMetrics,
    ) -> None:
        self._bus = bus
        self._tracer = tracer
        self._host = host
        self._publisher = publisher
        self._drafts = drafts
        self._book = book
        self._worker = worker
        self._leasing = Leasing(bus, host, worker)
        self.pulls = RemotePulls(bus, self._leasing, num_seats)
        self._num_seats = num_seats
        self._changed = changed
        self._metrics = metrics
        self._vocabulary = vocabulary
        self._commits = BlockCommits(host.keeper, host.model.layout, host.num_tokens_ahead)
        self._sequences: dict[Attempt, DecodeSequence] = {}
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._publishing: set[asyncio.Task[None]] = set()
        self._tombstones = Tombstones(_KEEP_S)
        self._past = Tombstones(_KEEP_S)  # accepted and over: a repeat is answered like the first
        self._answered = Tombstones(_KEEP_S)  # those whose client got its ending from here
        self.steps: DecodeSteps | None = None
        self.is_draining = False

    def sequences(self) -> Iterable[DecodeSequence]:
        """Return all that are held."""
        return self._sequences.values()

    def accept(self, job: DecodeJob, context: SpanContext | None) -> Accepted | Rejected:
        """Answer before any work; a repeat is answered like the first."""
        attempt = (job.request_id, job.attempt)
        now = time.monotonic()
        if attempt not in self._tasks and not self._past.has(attempt, now):
            reason = self._rejection(job, attempt, now)
            if reason is not None:
                return Rejected(request_id=job.request_id, attempt=job.attempt, reason=reason)
            self._begin(job, attempt, context)
        return Accepted(request_id=job.request_id, attempt=job.attempt, worker_id=self._worker[0])

    def cancel(self, message: Cancel) -> Cancelled:
        """Leave the batch before the next step; what comes later of this attempt is refused."""
        attempt = (message.request_id, message.attempt or 0)
        self._tombstones.add(attempt, time.monotonic())
        sequence = self._sequences.get(attempt)
        if sequence is None:
            self.pulls.drop(attempt)
            phase: Phase = "ended" if self._past.has(attempt, time.monotonic()) else "unknown"
            was_answered = self._answered.has(attempt, time.monotonic())
            return Cancelled(
                request_id=message.request_id, phase=phase, was_ended_here=was_answered
            )
        if not sequence.is_over:
            sequence.cancel_reason = message.reason
        return Cancelled(
            request_id=message.request_id, phase="decoding", was_ended_here=is_answered(sequence)
        )

    def prefilled(self, message: Prefilled) -> None:
        """Have KV fetched of a sequence that another host computes for this worker."""
        attempt = (message.request_id, message.attempt)
        now = time.monotonic()
        is_late = self._tombstones.has(attempt, now) or self._past.has(attempt, now)
        if not (is_late or self.is_draining or attempt in self._tasks):
            self.pulls.prefilled(message)

    def progress(self, sequence: DecodeSequence) -> None:
        """Have what a step brought sent, without holding up the next step."""
        num_booked = self._book.num_emitted(sequence.attempt)
        fresh = sequence.log.token_ids[num_booked:]
        self._book.emit(sequence.attempt, fresh)
        self._metrics.emitted(len(fresh))
        if fresh and not num_booked:
            self._metrics.began(sequence.usage(), _timings(sequence))
            if sequence.job.hand_over is None:
                self._changed()  # the next prompt may come
        num_left = sequence.num_prefill_tokens - sequence.num_computed_tokens
        if num_left > 0 and not sequence.is_over:
            self._host.gate.update(sequence.attempt, num_left)
        else:
            self._host.gate.leave(sequence.attempt)
        if not sequence.is_over:
            if not self._publisher.batch(sequence):
                self._publish(sequence, self._publisher.progress(sequence))
            self.commit_due(sequence)

    def commit_due(self, sequence: DecodeSequence) -> None:
        """Have whole blocks of a prompt committed, and the next ones handed out."""
        if self._commits.is_due(sequence):
            self._publish(sequence, self._commit(sequence))

    def preempted(self, sequence: DecodeSequence) -> None:
        """Give a preempted sequence's blocks back, and lease anew as soon as there are some."""
        self._host.gate.leave(sequence.attempt)
        sequence.span.add_event(names.EVENT_PREEMPTED)
        self._publish(sequence, self._release_and_lease_again(sequence))

    def lease_lost(self, lease_id: LeaseId) -> None:
        """End the sequence whose lease ran out."""
        for sequence in self._sequences.values():
            if sequence.lease_id == lease_id:
                sequence.error = JobEndedError("lease_lost", "the lease on its KV blocks ran out")

    async def drain(self, timeout_s: float) -> None:
        """Take no more, wait for what runs, then end the rest with an error to the client."""
        self.is_draining = True
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=timeout_s)
        self.fail_all(DRAINING, "the decode worker is shutting down")
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=1.0)

    @property
    def num_held(self) -> int:
        """Sequences whose blocks or answer this worker still has."""
        return len(self._tasks)

    def fail_all(self, code: str, message: str) -> None:
        """End every sequence with an error."""
        for sequence in self._sequences.values():
            sequence.error = sequence.error or JobEndedError(code, message)

    def _rejection(self, job: DecodeJob, attempt: Attempt, now: float) -> RejectionReason | None:
        if self.is_draining:
            return "draining"
        if self._tombstones.has(attempt, now):
            return "cancelled"
        if job.model != self._host.model.name:
            return "wrong_model"
        # As reports tell it: the scheduler fills a seat whose holder still gives its blocks back.
        return "no_seat" if self._book.num_held >= self._num_seats else None

    def _begin(self, job: DecodeJob, attempt: Attempt, context: SpanContext | None) -> None:
        span = self._tracer.start(
            names.SPAN_PROCESS_DECODE,
            parent=context or job.attempt_span,
            kind=SpanKind.CONSUMER,
            attributes={
                names.WORKER_ID: self._worker[0],
                names.ATTEMPT: job.attempt,
                names.ROUTE: job.route,
                names.MESSAGING_CONVERSATION_ID: job.request_id,
            },
        )
        sequence = intake.make_sequence(job, self._host.model.config, self._vocabulary, span)
        self._sequences[attempt] = sequence
        phase: Phase = "decoding" if job.hand_over is not None else "prefilling"
        self._book.hold(attempt, phase, list(job.output_token_ids))
        self._changed()
        self._publisher.open(sequence)
        self._tasks[attempt] = asyncio.create_task(self._serve(sequence))

    async def _serve(self, sequence: DecodeSequence) -> None:
        try:
            await self._start(sequence)
            await self._run(sequence)
        except Exception as error:  # noqa: BLE001 # whatever it is, the client gets its ending
            sequence.error = error
        try:
            await self._end(sequence)
            await self._give_back(sequence, sequence.job.attempt_span)
        finally:
            self._host.gate.leave(sequence.attempt)
            del self._sequences[sequence.attempt]
            del self._tasks[sequence.attempt]
            self._changed()

    async def _start(self, sequence: DecodeSequence) -> None:
        if sequence.job.hand_over is not None:
            await self._take_over(sequence)
            await intake.restore(self._host.samplers, sequence)
            intake.take_first_token(sequence)
            self.progress(sequence)
        else:
            await intake.restore(self._host.samplers, sequence)
            await self._lease(sequence)

    async def _take_over(self, sequence: DecodeSequence) -> None:
        started = time.perf_counter()
        if intake.is_near(sequence.job, self._host):
            await intake.adopt(self._bus, self._host, self._worker, sequence)
        else:
            await intake.fetch(self.pulls, sequence)
        sequence.hand_over_ms = (time.perf_counter() - started) * 1000

    async def _commit(self, sequence: DecodeSequence) -> None:
        assert self.steps is not None, "wired before the first job"
        await self._commits.commit(sequence)
        self.steps.wake()

    async def _lease(self, sequence: DecodeSequence) -> None:
        assert self.steps is not None, "wired before the first job"
        room = partial(self.steps.room_for, sequence)
        await intake.lease(self._leasing, sequence, lambda: sequence.is_over, room)

    async def _run(self, sequence: DecodeSequence) -> None:
        """Step until it is over. A sequence that was over at once never sees a step."""
        assert self.steps is not None, "wired before the first job"
        if sequence.is_over:
            return
        if self._drafts is not None:
            self._publish(sequence, self._drafts.open(sequence))
        self.steps.add(sequence)
        await sequence.retired.wait()
        if self._drafts is not None:
            await self._drafts.close(sequence)

    async def _end(self, sequence: DecodeSequence) -> None:
        """Answer the client, or leave that to the scheduler; nothing here may keep the blocks."""
        bound = log.bind(
            **request_fields(sequence.job.request_id, sequence.job.root_span),
            attempt=sequence.attempt[1],
        )
        now = time.monotonic()
        self._past.add(sequence.attempt, now)
        if is_answered(sequence):
            self._answered.add(sequence.attempt, now)
        if sequence.cancel_reason == REPLACED:
            sequence.ending = None  # also if the last step brought one: the scheduler goes on
        elif sequence.ending is None and sequence.cancel_reason is not None:
            # Whatever else a cancel set off, this is how it ends.
            sequence.ending = Ending("abort", sequence.cancel_reason)
        try:
            if sequence.ending is not None:
                await self._finish(sequence, sequence.ending, bound)
            else:
                await self._fail(sequence, bound)
        except Exception:  # noqa: BLE001 # whatever it is, the blocks must come back
            bound.exception("answer_not_sent")
            self._publisher.forget(sequence)
            self._book.end(sequence.attempt, code="answer_not_sent", message="it could not be sent")
            sequence.span.end("answer_not_sent")

    async def _give_back(self, sequence: DecodeSequence, context: SpanContext | None) -> None:
        """End the lease between two steps; what others may find of it is committed first."""
        lease_id = sequence.lease_id
        if lease_id is None:
            return
        if sequence.error is None:
            await self._commits.commit(sequence)
        sequence.drop_blocks()
        await self._host.keeper.release(lease_id, sequence.attempt, context)

    async def _finish(self, sequence: DecodeSequence, ending: Ending, bound: Any) -> None:
        # Any: structlog's bound logger
        usage = sequence.usage()
        timings = _timings(sequence)
        prompt = None
        if sequence.job.sampling.wants_prompt:
            prompt = await asyncio.to_thread(echoed_prompt, sequence, self._vocabulary)
        answer = sequence.log.finish(ending, usage, timings, self._host.numerics, prompt)
        failed = await self._publisher.finish(sequence, answer)
        if failed is None:
            self._metrics.finished(ending.finish_reason, timings)
        else:
            self._metrics.failed(failed.code)
        self._book.end(
            sequence.attempt,
            was_answered=True,
            finish_reason=ending.finish_reason,
            usage=usage,
            ttft_ms=timings.ttft_ms,
            total_ms=timings.total_ms,
        )
        describe(sequence, timings)
        sequence.span.set(names.GEN_AI_RESPONSE_FINISH_REASONS, [ending.finish_reason])
        sequence.span.end()
        bound.info("decode_done", finish_reason=ending.finish_reason, num_steps=usage.num_steps)

    async def _fail(self, sequence: DecodeSequence, bound: Any) -> None:
        # Any: structlog's bound logger
        was_answered = is_answered(sequence)
        error = sequence.error
        if sequence.cancel_reason is not None or error is None:
            error = JobEndedError(REPLACED, "another attempt goes on with the request")
        code = error_code(error)
        message = str(error) if isinstance(error, SlipstreamError) else type(error).__name__
        if was_answered:
            failed = Failed(
                code=code,
                message=message,
                request_id=sequence.job.request_id,
                attempt=sequence.job.attempt,
                trace_id=sequence.job.root_span.trace_id,
                choice=sequence.job.choice,
            )
            await self._publisher.fail(sequence, failed)
            self._metrics.failed(code)
        else:
            self._publisher.forget(sequence)
        self._book.end(sequence.attempt, was_answered=was_answered, code=code, message=message)
        describe(sequence, None)
        sequence.span.end(code, description=message)
        if isinstance(error, SlipstreamError):
            bound.warning("decode_failed", code=code, error=message)
        else:
            bound.error("decode_failed", code=code, exc_info=error)

    async def _release_and_lease_again(self, sequence: DecodeSequence) -> None:
        assert self.steps is not None, "wired before the first job"
        try:
            try:
                await self._give_back(sequence, None)
            finally:
                self.steps.released()
            await self._lease(sequence)
        except Exception as error:  # noqa: BLE001 # it must come back to the batch to be ended
            sequence.error = sequence.error or error
        # Also when it failed: only a step's end may retire it.
        self.steps.add(sequence)

    def _publish(self, sequence: DecodeSequence, work: Coroutine[Any, Any, None]) -> None:
        # Any: a coroutine's send type
        task = asyncio.create_task(work)
        self._publishing.add(task)
        task.add_done_callback(partial(self._published, sequence))

    def _published(self, sequence: DecodeSequence, task: "asyncio.Task[None]") -> None:
        self._publishing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The reader notices the gap by index and resumes.
            log.warning(
                "publish_failed",
                **request_fields(sequence.job.request_id, sequence.job.root_span),
                attempt=sequence.job.attempt,
                error=str(error) or type(error).__name__,
            )


def _timings(sequence: DecodeSequence) -> Timings:
    return sequence.log.timings(sequence.prefill_ms, sequence.hand_over_ms)
