"""Give a placed request to its first worker by request and reply."""

import asyncio
from typing import Any

import msgspec

from slipstream.services.scheduler.records import RequestRecord
from slipstream.services.scheduler.succession import ALONE, Succession
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import RemoteError, call, call_again
from slipstream.shared.bus.subjects import DECODE, PREFILL, Topic
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.common import Accepted, Rejected
from slipstream.shared.messages.generate import Cancel, Cancelled
from slipstream.shared.messages.jobs import DecodeJob, PrefillJob, SequenceJob
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.context import inject
from slipstream.shared.telemetry.spans import Span, SpanKind
from slipstream.shared.telemetry.tracing import Tracer

_ANSWER_S = 1.0
_NUM_TRIES = 3
_CANCEL_S = 1.0
_OUTAGE_S = 120.0  # how long NATS may be away before an attempt fails for it


class Dispatcher:
    """Sends jobs and cancels; decides nothing."""

    def __init__(
        self, bus: Bus, tracer: Tracer, model: str, succession: Succession = ALONE
    ) -> None:
        self._bus = bus
        self._tracer = tracer
        self._model = model
        self._succession = succession

    async def send(self, record: RequestRecord) -> Accepted | Rejected:
        """
        Send the record's job to the worker that begins with it.

        A repeat is answered like the first, so a lost answer is asked for again. Raises
        NoRespondersError, DeadlineExceededError, RemoteError.
        """
        placement = record.placement
        assert placement is not None, "only a placed request is sent"
        topic = DECODE if placement.prefill_worker_id is None else PREFILL
        worker_id = placement.prefill_worker_id or placement.decode_worker_id
        job = self._job(record)
        with self._send_span(record, worker_id) as span:
            headers = inject(span.context)
            try:
                answer: Accepted | Rejected = await call_again(
                    self._bus,
                    topic,
                    lambda: msgspec.structs.replace(job, deadline_ms=record.deadline.remaining_ms),
                    timeout_s=_ANSWER_S,
                    num_tries=_NUM_TRIES,
                    max_wait_s=record.deadline.left_s(_OUTAGE_S),
                    headers=headers,
                    worker_id=worker_id,
                )
            except RemoteError as error:
                self._succession.check(error)
                raise
        return answer

    async def cancel(self, record: RequestRecord, reason: str) -> list[Cancelled]:
        """Tell every worker of the attempt; a worker that is gone needs no telling."""
        placement = record.placement
        if placement is None:
            return []
        message = Cancel(
            request_id=record.request_id,
            attempt=record.attempt,
            reason=reason,
            scheduler_epoch=self._succession.epoch,
        )
        sends = [self._cancel(DECODE, placement.decode_worker_id, message)]
        if placement.prefill_worker_id is not None:
            sends.append(self._cancel(PREFILL, placement.prefill_worker_id, message))
        answers = await asyncio.gather(*sends)
        return [answer for answer in answers if answer is not None]

    async def _cancel(self, topic: Topic, worker_id: WorkerId, message: Cancel) -> Cancelled | None:
        try:
            answer: Cancelled = await call(
                self._bus,
                topic,
                message,
                timeout_s=_CANCEL_S,
                worker_id=worker_id,
            )
        except (SlipstreamError, ValueError) as error:  # an id that is no subject listens nowhere
            self._succession.check(error)
            return None
        return answer

    def _send_span(self, record: RequestRecord, worker_id: WorkerId) -> Span:
        assert record.attempt_span is not None, "an attempt has its span"
        placement = record.placement
        is_local = placement is not None and placement.prefill_worker_id is None
        return self._tracer.start(
            names.SPAN_SEND_DECODE if is_local else names.SPAN_SEND_PREFILL,
            parent=record.attempt_span.context,
            kind=SpanKind.PRODUCER,
            attributes={
                names.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM_NATS,
                names.MESSAGING_OPERATION_TYPE: names.OPERATION_SEND,
                names.MESSAGING_DESTINATION_TEMPLATE: (DECODE if is_local else PREFILL).pattern,
                names.MESSAGING_CONVERSATION_ID: record.request_id,
                names.WORKER_ID: worker_id,
            },
        )

    def _job(self, record: RequestRecord) -> SequenceJob:
        placement, span, request = record.placement, record.attempt_span, record.request
        assert placement is not None, "only a placed request is sent"
        assert span is not None, "an attempt has its span"
        fields: dict[str, Any] = {  # Any: as many types as fields; the structs name them
            "request_id": record.request_id,
            "attempt": record.attempt,
            "scheduler_epoch": self._succession.epoch,
            "model": self._model,
            "prompt_token_ids": request.prompt_token_ids,
            "output_token_ids": PackedInts(record.token_ids[: record.num_given_tokens]),
            "sampling": request.sampling,
            "choice": record.choice,
            "reply": record.reply,
            "root_span": record.root.context,
            "attempt_span": span.context,
            "route": placement.route,
            "route_reason": placement.reason,
            "queue_ms": record.queue_ms,
            "elapsed_ms": record.elapsed_ms,
            "priority": record.job_priority,
            "tenant": request.tenant,
            "cache_salt": request.cache_salt,
            "allow_other_numerics": request.allow_other_numerics,
            "latency_class": request.latency_class,
            "client_inbox": record.client_inbox,
            "is_alone": record.is_alone,
        }
        if placement.prefill_worker_id is None:
            return DecodeJob(**fields)
        return PrefillJob(
            **fields,
            decode_worker_id=placement.decode_worker_id,
            decode_host_id=placement.host_id,
        )
