"""
Turn a job into a sequence that can be stepped.

Adopt what was handed over, or lease blocks, and go on where earlier attempts stopped.
"""

import time
from collections.abc import Callable

import msgspec

from slipstream.services.decode.pulls import RemotePulls
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.stopping import StopChecker
from slipstream.services.decode.stream import TokenLog
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import call_kv
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.jobs import DecodeJob, HandOver
from slipstream.shared.messages.kv import Adopt, Adopted, KvRefused
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.detokenizer import IncrementalDetokenizer, Vocabulary
from slipstream.shared.model.sampling import SampledToken
from slipstream.shared.telemetry.context import inject
from slipstream.shared.telemetry.spans import Span
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.leasing import JobEndedError, Leasing
from slipstream.shared.worker.sampler_source import SamplerSource

_OUTAGE_S = 120.0  # how long NATS may be away before an adoption fails for it


def make_sequence(
    job: DecodeJob, config: ModelConfig, vocabulary: Vocabulary, span: Span
) -> DecodeSequence:
    """Return the sequence as it is before any token of its output; `restore` comes next."""
    max_num_output = config.max_context_length - len(job.prompt_token_ids)
    checker = StopChecker(
        job.sampling,
        config.eos_token_ids,
        max_num_output,
        IncrementalDetokenizer(vocabulary, job.prompt_token_ids, job.sampling.skip_special_tokens),
    )
    return DecodeSequence(
        job=job,
        token_ids=list(job.prompt_token_ids),
        sampler=None,
        checker=checker,
        log=TokenLog(job),
        deadline=Deadline.from_ms(job.deadline_ms),
        span=span,
        max_num_tokens=config.max_context_length,
    )


async def restore(samplers: SamplerSource, sequence: DecodeSequence) -> None:
    """
    Bring sampler, text and stream where earlier attempts left them.

    Raises ConstraintError, ModelError.
    """
    job = sequence.job
    output_token_ids = job.output_token_ids
    sampler = await samplers.open(job.sampling, job.prompt_token_ids, output_token_ids)
    for position, token_id in enumerate(output_token_ids, start=1):
        is_last = sampler.is_complete and position == len(output_token_ids)
        sequence.emit(SampledToken(token_id, is_last=is_last))
    sequence.log.restored()
    sequence.sampler = sampler


def take_first_token(sequence: DecodeSequence) -> None:
    """Go on behind the token that came with the hand-over; the same rules chose it."""
    hand_over, sampler = sequence.job.hand_over, sequence.sampler
    assert hand_over is not None, "only a handed over sequence has one"
    assert sampler is not None, "it has been restored"
    # Earlier attempts may have said everything but the ending.
    if sequence.ending is not None:
        return
    token_id = hand_over.first_token_id
    sampler.accept(token_id)
    sequence.emit(SampledToken(token_id, hand_over.first_token_logprobs, sampler.is_complete))


def as_job(sequence: DecodeSequence) -> DecodeJob:
    """Return the job of a sequence as another attempt would be given it now."""
    return msgspec.structs.replace(
        sequence.job,
        hand_over=None,
        output_token_ids=PackedInts(sequence.log.token_ids),
        deadline_ms=sequence.deadline.remaining_ms,
        elapsed_ms=(time.monotonic() - sequence.arrived_at) * 1000,
    )


def is_near(job: DecodeJob, host: WorkerHost) -> bool:
    """Tell whether a handed over sequence lies in this host's arena."""
    hand_over = job.hand_over
    assert hand_over is not None, "only a handed over sequence lies anywhere"
    return hand_over.host_id == host.host_id and hand_over.arena_epoch == host.arena.epoch


async def adopt(
    bus: Bus, host: WorkerHost, worker: tuple[WorkerId, int], sequence: DecodeSequence
) -> None:
    """
    Take over a sequence that was prefilled on this host: lease and blocks.

    Raises JobEndedError when the lease has ended.
    """
    hand_over = sequence.job.hand_over
    assert hand_over is not None, "only a handed over sequence is adopted"
    message = Adopt(
        request_id=sequence.job.request_id,
        attempt=sequence.job.attempt,
        lease_id=hand_over.lease_id,
        from_worker_id=hand_over.prefill_worker_id,
        to_worker_id=worker[0],
        to_worker_epoch=worker[1],
    )
    # From here on the lease may be ours, also when the answer is lost: the end releases it.
    sequence.lease_id = hand_over.lease_id
    asked_at = time.monotonic()
    headers = inject(sequence.job.attempt_span)
    answer: Adopted | KvRefused = await call_kv(
        bus, host.host_id, message, headers=headers, max_wait_s=sequence.deadline.left_s(_OUTAGE_S)
    )
    if isinstance(answer, KvRefused):
        raise JobEndedError(f"kv_{answer.reason}", answer.message or "the lease can't be adopted")
    host.keeper.hold(answer.lease_id, asked_at, sequence.attempt, sequence.job.root_span)
    sequence.block_ids = list(hand_over.block_ids)
    sequence.generations = list(hand_over.generations)
    _go_on(sequence, hand_over, host.model.layout.block_size)


async def fetch(pulls: RemotePulls, sequence: DecodeSequence) -> None:
    """
    Take over a sequence that was prefilled on another host: copy its blocks into a lease here.

    Raises JobEndedError when they can't be had.
    """
    hand_over = sequence.job.hand_over
    assert hand_over is not None, "only a handed over sequence is fetched"
    leased = await pulls.take(sequence.job, sequence.deadline, lambda: sequence.is_over)
    sequence.take_lease(leased)
    _go_on(sequence, hand_over, leased.block_size)


def _go_on(sequence: DecodeSequence, hand_over: HandOver, block_size: int) -> None:
    sequence.num_computed_tokens = hand_over.num_computed_tokens
    # All whole blocks have been committed.
    sequence.num_committed_tokens = sequence.num_whole_tokens(block_size)
    sequence.num_prefill_tokens = 0
    sequence.note_cached(hand_over.num_cached_tokens)
    sequence.prefill_ms = hand_over.prefill_ms


async def lease(
    leasing: Leasing,
    sequence: DecodeSequence,
    is_cancelled: Callable[[], bool],
    num_spare: Callable[[], int | None],
) -> None:
    """Lease blocks for a sequence that is to be prefilled here. Raises JobEndedError."""
    leased = await leasing.lease(
        sequence.job,
        sequence.deadline,
        is_cancelled,
        sequence.token_ids,
        arrived_at=sequence.arrived_at,
        num_spare=num_spare,
    )
    sequence.take_lease(leased)
    if sequence.num_preemptions == 0:
        sequence.note_cached(leased.num_cached_tokens)
