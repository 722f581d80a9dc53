"""
What a scheduler does first when it becomes the active one: pick up what others left.

What workers hold becomes a record again, from the job that they tell. What a client sent and no
worker holds is admitted again, under its old id and with its old seed, from the shadow.
"""

from collections.abc import Iterable

import structlog

from slipstream.services.scheduler.admission import AdmittedRequest
from slipstream.services.scheduler.choices import choice_id
from slipstream.services.scheduler.dispatch import Dispatcher
from slipstream.services.scheduler.front import Front
from slipstream.services.scheduler.records import RequestRecord
from slipstream.services.scheduler.relay import Relay
from slipstream.services.scheduler.shadow import Shadowed
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.common import Phase
from slipstream.shared.messages.generate import REPLACED
from slipstream.shared.messages.jobs import DecodeJob, PrefillJob
from slipstream.shared.messages.reports import RequestAdmitted, WorkerReport
from slipstream.shared.scheduling.classes import DEFAULT_CLASS
from slipstream.shared.scheduling.placed import Placement
from slipstream.shared.scheduling.prompt_hashes import PromptHashes
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.deadline import Deadline

log = structlog.get_logger()

# Attempts that the last scheduler may have begun without our hearing of them: their numbers are
# taken, as workers answer a repeat like the first.
_ATTEMPT_GAP = 8


class Takeover:
    """Turns jobs and messages into records of this scheduler."""

    def __init__(self, front: Front, dispatcher: Dispatcher, relay: Relay, tracer: Tracer) -> None:
        self._front = front
        self._desk = front.desk
        self._dispatcher = dispatcher
        self._relay = relay
        self._tracer = tracer

    async def run(self, reports: Iterable[WorkerReport], shadowed: Iterable[Shadowed]) -> None:
        """Adopt what workers hold, then admit what nobody holds, the oldest first."""
        for report in reports:
            self.adopt(report)
        num_adopted = len(self._desk.records)
        entries = list(shadowed)
        for entry in entries:
            try:
                await self._reopen(entry)
            except SlipstreamError as error:
                log.warning("request_not_readmitted", error=str(error))
            except Exception:
                log.exception("request_not_readmitted")
        log.info("took_over", num_adopted=num_adopted, num_shadowed=len(entries))

    def adopt(self, report: WorkerReport) -> None:
        """Make records of a worker's jobs, or have it let go of what nobody waits for."""
        for job in report.jobs:
            known = self._desk.records.get(job.request_id)
            record = known or record_of(job, self._tracer)
            placement = _placement_of(job, report)
            if placement is None:
                continue
            if known is not None and known.attempt == job.attempt:
                continue
            if self._is_orphan(job) or (known is not None and known.phase != "waiting"):
                self._release(record_of(job, self._tracer), placement)
                continue
            record.attempt = job.attempt
            record.token_ids = list(job.output_token_ids)
            record.num_given_tokens = len(record.token_ids)
            record.queue_ms = job.queue_ms
            phase: Phase = "prefilling" if isinstance(job, PrefillJob) else "decoding"
            span = self._tracer.start(names.SPAN_ATTEMPT, context=job.attempt_span)
            self._desk.adopt(record, placement, phase, span)

    def _is_orphan(self, job: PrefillJob | DecodeJob) -> bool:
        """Tell whether a scheduler was to take the answer, which is gone with what it knew."""
        return job.reply.subject != job.client_inbox

    def _release(self, record: RequestRecord, placement: Placement) -> None:
        record.placement = placement

        async def release() -> None:
            await self._dispatcher.cancel(record, REPLACED)

        self._desk.run(release(), record.log_fields)

    async def _reopen(self, entry: Shadowed) -> None:
        told = entry.admitted
        if told is None:
            await self._front.generate(entry.incoming)
            return
        ended = set(entry.ended_choices) if told.is_streamed else set()
        if told.num_choices > 1:
            ended |= self._adopted_choices(told)
        elif (record := self._desk.records.get(told.request_id)) is not None:
            await self._relay.admitted(record, entry.incoming)
            return
        root = self._tracer.start(names.SPAN_PROCESS_GENERATE, context=told.root_span)
        attempt = entry.attempt + _ATTEMPT_GAP
        await self._front.reopen(entry, root, attempt, ended)

    def _adopted_choices(self, told: RequestAdmitted) -> set[int]:
        ids = [choice_id(told.request_id, choice) for choice in range(told.num_choices)]
        return {choice for choice, each in enumerate(ids) if each in self._desk.records}


def record_of(job: PrefillJob | DecodeJob, tracer: Tracer) -> RequestRecord:
    """Return the record of a request as far as its job tells."""
    deadline = Deadline.from_ms(job.deadline_ms)
    request = AdmittedRequest(
        prompt_token_ids=job.prompt_token_ids,
        sampling=job.sampling,
        is_streamed=job.reply.is_streamed,
        route="auto",
        priority=0,
        deadline_ms=job.deadline_ms or 0,
        tenant=job.tenant,
        cache_salt=job.cache_salt,
        allow_other_numerics=job.allow_other_numerics,
        num_bytes=len(job.prompt_token_ids.to_bytes()),
        hashes=PromptHashes(job.prompt_token_ids, job.cache_salt),
        latency_class=job.latency_class or DEFAULT_CLASS,
    )
    record = RequestRecord(
        request_id=job.request_id,
        request=request,
        reply=job.reply,
        root=tracer.start(names.SPAN_PROCESS_GENERATE, context=job.root_span),
        deadline=deadline,
        choice=job.choice,
        client_inbox=job.client_inbox,
        attempt=job.attempt,
        is_charged=True,
        job_priority=job.priority,
    )
    record.arrived_at -= job.elapsed_ms / 1000
    return record


def _placement_of(job: PrefillJob | DecodeJob, report: WorkerReport) -> Placement | None:
    if report.host_id is None:
        return None
    if isinstance(job, PrefillJob):
        return Placement(
            job.decode_worker_id, job.decode_host_id, report.worker_id, job.route, job.route_reason
        )
    return Placement(report.worker_id, report.host_id, None, job.route, job.route_reason)
