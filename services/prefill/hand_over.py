"""Give a prefilled sequence to its decode worker: by block table and lease, never by value."""

import contextlib
import time

import msgspec

from slipstream.services.prefill.sequence import PrefillSequence
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import call_again
from slipstream.shared.bus.subjects import DECODE
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Accepted, Rejected
from slipstream.shared.messages.jobs import DecodeJob, HandOver, PrefillJob, SequenceJob
from slipstream.shared.messages.kv import BlockOrigin, Blocks, Prefilled
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.context import inject
from slipstream.shared.telemetry.spans import SpanKind
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.host import WorkerHost

_ANSWER_S = 1.0
_NUM_TRIES = 3
_OUTAGE_S = 120.0  # how long NATS may be away before the hand-over fails for it


def decode_job(
    sequence: PrefillSequence, host: WorkerHost, worker_id: WorkerId, received_at: float
) -> DecodeJob:
    """Return the job that passes the sequence on. Its first token has been sampled."""
    job = sequence.job
    first = sequence.first_token
    assert first is not None, "only a prefilled sequence is handed over"
    common = {name: getattr(job, name) for name in SequenceJob.__struct_fields__}
    common["elapsed_ms"] = job.elapsed_ms + (time.monotonic() - received_at) * 1000
    leased = sequence.leased
    return DecodeJob(
        **common,
        hand_over=HandOver(
            lease_id=leased.lease_id,
            host_id=host.host_id,
            prefill_worker_id=worker_id,
            block_ids=PackedInts(leased.block_ids),
            generations=PackedInts(leased.generations),
            num_computed_tokens=sequence.num_computed_tokens,
            first_token_id=first.token_id,
            first_token_logprobs=first.logprobs,
            arena_epoch=host.arena.epoch,
            num_cached_tokens=leased.num_cached_tokens,
            num_chunks=sequence.num_chunks,
            prefill_ms=(time.monotonic() - sequence.started_at) * 1000,
            origin=None if is_near(job, host) else _origin(sequence, host, worker_id),
        ),
    )


def is_near(job: PrefillJob, host: WorkerHost) -> bool:
    """Tell whether the decode worker maps the same arena."""
    return job.decode_host_id == host.host_id


async def tell_ahead(
    bus: Bus, sequence: PrefillSequence, host: WorkerHost, worker_id: WorkerId
) -> None:
    """Tell a decode worker of another host what it can fetch already. Lost, it costs time only."""
    job, leased = sequence.job, sequence.leased
    message = Prefilled(
        request_id=job.request_id,
        attempt=job.attempt,
        deadline_ms=job.deadline_ms,
        origin=_origin(sequence, host, worker_id),
        blocks=Blocks(PackedInts(leased.block_ids), PackedInts(leased.generations)),
        num_tokens=sequence.num_committed_tokens,
        token_ids=PackedInts(sequence.token_ids),
        cache_salt=job.cache_salt,
        adapter=job.adapter,
        priority=job.priority,
        elapsed_ms=job.elapsed_ms,
    )
    subject = DECODE.subject(worker_id=job.decode_worker_id)
    with contextlib.suppress(SlipstreamError):
        await bus.publish(subject, encode(message))


def _origin(sequence: PrefillSequence, host: WorkerHost, worker_id: WorkerId) -> BlockOrigin:
    return BlockOrigin(
        host_id=host.host_id,
        arena_epoch=host.arena.epoch,
        lease_id=sequence.leased.lease_id,
        worker_id=worker_id,
        layout=host.model.layout.fingerprint,
        model_fingerprint=host.model.fingerprint,
        addresses=host.link.welcome.transfer_addresses,
    )


async def hand_over(
    bus: Bus, tracer: Tracer, job: PrefillJob, decode: DecodeJob, deadline: Deadline
) -> Accepted | Rejected:
    """
    Send the sequence until there is an answer: the worker answers a repeat like the first.

    Raises NoRespondersError, DeadlineExceededError, RemoteError.
    """
    span = tracer.start(
        names.SPAN_SEND_DECODE,
        # Not our own span: a killed process must not leave orphans behind.
        parent=job.attempt_span,
        kind=SpanKind.PRODUCER,
        attributes={
            names.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM_NATS,
            names.MESSAGING_DESTINATION_TEMPLATE: DECODE.pattern,
            names.WORKER_ID: job.decode_worker_id,
        },
    )
    with span:
        headers = inject(span.context)
        answer: Accepted | Rejected = await call_again(
            bus,
            DECODE,
            lambda: msgspec.structs.replace(decode, deadline_ms=deadline.remaining_ms),
            timeout_s=_ANSWER_S,
            num_tries=_NUM_TRIES,
            max_wait_s=deadline.left_s(_OUTAGE_S),
            headers=headers,
            worker_id=job.decode_worker_id,
        )
    return answer
