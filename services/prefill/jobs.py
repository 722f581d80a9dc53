"""The jobs of a prefill worker: accepted or rejected, then leased, computed, handed over."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
import structlog

from slipstream.services.prefill.hand_over import decode_job, hand_over, is_near, tell_ahead
from slipstream.services.prefill.sequence import PrefillSequence
from slipstream.services.prefill.steps import PrefillSteps
from slipstream.shared.bus.bus import Bus
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import LeaseId, WorkerId
from slipstream.shared.messages.common import Accepted, Rejected, RejectionReason
from slipstream.shared.messages.generate import Cancel, Cancelled
from slipstream.shared.messages.jobs import PrefillJob
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.telemetry.logging import request_fields
from slipstream.shared.telemetry.spans import Span, SpanKind
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.leasing import JobEndedError, Leasing
from slipstream.shared.worker.report_book import Attempt, ReportBook
from slipstream.shared.worker.tombstones import Tombstones

log = structlog.get_logger()

_KEEP_S = 60.0
_LONGEST_KEEP_S = 30.0
_LOOK_S = 0.5  # also without progress: a commit may lack its answer, a lease may be lost


class PrefillJobs:
    """Owns the jobs between their acceptance and the moment somebody else holds the sequence."""

    def __init__(
        self,
        bus: Bus,
        tracer: Tracer,
        host: WorkerHost,
        steps: PrefillSteps,
        book: ReportBook,
        worker: tuple[WorkerId, int],
        num_seats: int,
        changed: Callable[[], None],
        scheduler_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self._bus = bus
        self._tracer = tracer
        self._host = host
        self._steps = steps
        self._book = book
        self._worker_id = worker[0]
        self._leasing = Leasing(bus, host, worker)
        self._num_seats = num_seats
        self._changed = changed
        self._scheduler_epoch = scheduler_epoch
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._jobs: dict[Attempt, tuple[PrefillJob, float]] = {}  # and when they were received
        self._sequences: dict[Attempt, PrefillSequence] = {}
        self._cancelled: set[Attempt] = set()
        self._tombstones = Tombstones(_KEEP_S)
        self._past = Tombstones(_KEEP_S)  # accepted and over: a repeat is answered like the first
        self.is_draining = False

    @property
    def num_running(self) -> int:
        """Jobs held."""
        return len(self._tasks)

    @property
    def num_leased(self) -> int:
        """Jobs that hold KV blocks."""
        return len(self._sequences)

    def accept(self, job: PrefillJob, context: SpanContext | None) -> Accepted | Rejected:
        """Answer before any work; a repeat is answered like the first."""
        attempt = (job.request_id, job.attempt)
        if attempt not in self._tasks and not self._past.has(attempt, time.monotonic()):
            reason = self._rejection(job, attempt)
            if reason is not None:
                return Rejected(request_id=job.request_id, attempt=job.attempt, reason=reason)
            self._book.hold(attempt, "prefilling")
            self._changed()
            self._jobs[attempt] = (job, time.monotonic())
            self._tasks[attempt] = asyncio.create_task(self._serve(job, context))
        return Accepted(request_id=job.request_id, attempt=job.attempt, worker_id=self._worker_id)

    def held(self) -> list[PrefillJob]:
        """Return all jobs that are held, with what has become of their time."""
        now = time.monotonic()
        return [_aged(job, (now - received_at) * 1000) for job, received_at in self._jobs.values()]

    def cancel(self, message: Cancel) -> Cancelled:
        """Stop at the next chunk; what comes later of this attempt is refused."""
        attempt = (message.request_id, message.attempt or 0)
        self._tombstones.add(attempt, time.monotonic())
        if attempt not in self._tasks:
            return Cancelled(request_id=message.request_id)
        self._cancelled.add(attempt)
        sequence = self._sequences.get(attempt)
        if sequence is not None:
            sequence.is_cancelled = True
        return Cancelled(request_id=message.request_id, phase="prefilling")

    def lease_lost(self, lease_id: LeaseId) -> None:
        """End the sequence whose lease ran out."""
        for sequence in self._sequences.values():
            if sequence.leased.lease_id == lease_id:
                sequence.error = JobEndedError("lease_lost", "the lease ran out")

    async def drain(self, timeout_s: float) -> None:
        """Take no more, wait for what runs, then cancel the rest and wait for its release."""
        self.is_draining = True
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=timeout_s)
        for request_id, number in list(self._tasks):
            self.cancel(Cancel(request_id=request_id, attempt=number, reason="draining"))
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=1.0)

    def _rejection(self, job: PrefillJob, attempt: Attempt) -> RejectionReason | None:
        if self.is_draining:
            return "draining"
        if self._tombstones.has(attempt, time.monotonic()):
            return "cancelled"
        if job.model != self._host.model.name:
            return "wrong_model"
        return "no_seat" if len(self._tasks) >= self._num_seats else None

    async def _serve(self, job: PrefillJob, context: SpanContext | None) -> None:
        attempt = (job.request_id, job.attempt)
        span = self._tracer.start(
            names.SPAN_PROCESS_PREFILL,
            parent=context or job.attempt_span,
            kind=SpanKind.CONSUMER,
            attributes={
                names.WORKER_ID: self._worker_id,
                names.ATTEMPT: job.attempt,
                names.MESSAGING_CONVERSATION_ID: job.request_id,
                names.GEN_AI_USAGE_INPUT_TOKENS: len(job.prompt_token_ids),
            },
        )
        bound = log.bind(**request_fields(job.request_id, job.root_span), attempt=job.attempt)
        try:
            await self._lease_compute_hand_over(job, attempt, span)
        except SlipstreamError as error:
            bound.warning("prefill_failed", code=error.code, error=str(error))
            self._book.end(attempt, code=error.code, message=str(error))
            span.end(error.code, description=str(error))
        except Exception as error:  # noqa: BLE001 # whatever it is, the scheduler must hear
            bound.exception("prefill_failed")
            self._book.end(attempt, code="internal_error", message=type(error).__name__)
            span.end(error)
        else:
            bound.info("prefill_done", num_tokens=len(job.prompt_token_ids))
            self._book.end(attempt)
            span.end()
        finally:
            del self._tasks[attempt]
            del self._jobs[attempt]
            self._cancelled.discard(attempt)
            self._past.add(attempt, time.monotonic())
            self._changed()

    async def _lease_compute_hand_over(self, job: PrefillJob, attempt: Attempt, span: Span) -> None:
        received_at = time.monotonic()
        deadline = Deadline.from_ms(job.deadline_ms)
        # Before the lease: what a constraint needs may take a while the first time.
        sampler = await self._host.samplers.open(
            job.sampling, job.prompt_token_ids, job.output_token_ids
        )
        token_ids = [*job.prompt_token_ids, *job.output_token_ids]
        leased = await self._leasing.lease(
            job,
            deadline,
            lambda: attempt in self._cancelled,
            token_ids,
            arrived_at=received_at - job.elapsed_ms / 1000,
        )
        span.set(names.NUM_CACHED_TOKENS, leased.num_cached_tokens)
        sequence = PrefillSequence(job, leased, sampler, token_ids, leased.num_cached_tokens)
        sequence.is_cancelled = attempt in self._cancelled
        self._sequences[attempt] = sequence
        is_given = False
        try:
            await self._compute(sequence, deadline)
            self._book.hold(attempt, "handing_over")
            message = decode_job(sequence, self._host, self._worker_id, received_at)
            # Of the scheduler that knows of it by now, which may have taken over meanwhile.
            message = msgspec.structs.replace(message, scheduler_epoch=self._scheduler_epoch())
            answer = await hand_over(self._bus, self._tracer, job, message, deadline)
            if isinstance(answer, Rejected):
                raise JobEndedError(f"decode_{answer.reason}", answer.message)
            is_given = True
        finally:
            del self._sequences[attempt]
            self._host.gate.leave(attempt)
            span.set(names.NUM_CHUNKS, sequence.num_chunks)
            span.set(names.LEASE_NUM_BLOCKS, len(leased.block_ids))
            if is_given:
                # Another host fetches the blocks first, and may have to wait for room.
                keep_s = 0.0 if is_near(job, self._host) else deadline.left_s(_LONGEST_KEEP_S)
                self._host.keeper.give(leased.lease_id, keep_s)
            else:
                await self._host.keeper.release(leased.lease_id, attempt, job.attempt_span)

    async def _compute(self, sequence: PrefillSequence, deadline: Deadline) -> None:
        """Wait until what was not cached is computed and committed, block by block."""
        self._steps.add(sequence)
        is_retired = False
        while not is_retired:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await sequence.progress.wait()
            sequence.progress.clear()
            # As of now: what steps compute while the commit below waits needs another one. Whoever
            # takes the sequence over believes that all whole blocks are committed.
            is_retired = sequence.is_retired
            if not sequence.is_done:
                sequence.error = self._reason_to_end(sequence, deadline)
            num_left = len(sequence.token_ids) - sequence.num_computed_tokens
            self._host.gate.update(sequence.attempt, num_left)
            if sequence.error is None:
                try:
                    await self._commit(sequence)
                except Exception as error:  # noqa: BLE001 # only a step's end may let go of blocks
                    sequence.error = error
            if sequence.is_done:
                self._steps.wake()
        if sequence.error is not None:
            raise _translated(sequence.error)
        if sequence.is_cancelled:
            raise JobEndedError("cancelled", "the request was cancelled")

    def _reason_to_end(self, sequence: PrefillSequence, deadline: Deadline) -> Exception | None:
        if deadline.is_over:
            return JobEndedError("deadline_exceeded", "no token before the deadline")
        if not self._host.keeper.is_safe(sequence.leased.lease_id, 0.0):
            return JobEndedError("lease_lost", "the lease ran out")
        return None

    async def _commit(self, sequence: PrefillSequence) -> None:
        """Let others find the whole blocks, and get those that the next steps write."""
        leased, layout = sequence.leased, self._host.model.layout
        num_whole = sequence.num_computed_tokens // layout.block_size * layout.block_size
        first = sequence.num_committed_tokens
        num_wanted = num_known = 0
        if leased.num_reserved:
            end = sequence.num_computed_tokens + self._host.num_tokens_ahead
            num_wanted = layout.num_blocks_for(min(len(sequence.token_ids), end))
            num_known = leased.num_known
        if num_whole <= first and num_wanted <= num_known:
            return
        new = sequence.token_ids[first:num_whole]
        more = await self._host.keeper.commit(
            leased.lease_id, num_whole, new, num_known, num_wanted
        )
        # Tokens whose commit got no answer are told again with the next.
        if more is not None:
            sequence.num_committed_tokens = num_whole
            leased.take(more)
            self._steps.wake()
            if num_whole > first and not is_near(sequence.job, self._host):
                await tell_ahead(self._bus, sequence, self._host, self._worker_id)


def _aged(job: PrefillJob, ms: float) -> PrefillJob:
    left_ms = None if job.deadline_ms is None else max(0, job.deadline_ms - int(ms))
    return msgspec.structs.replace(job, deadline_ms=left_ms, elapsed_ms=job.elapsed_ms + ms)


def _translated(error: Exception) -> Exception:
    return (
        error if isinstance(error, SlipstreamError) else JobEndedError("internal_error", str(error))
    )
