"""Get the blocks of a sequence from the host's KV manager, waiting while there are too few."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import structlog

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import call_kv
from slipstream.shared.errors import DeadlineExceededError, SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.jobs import SequenceJob
from slipstream.shared.messages.kv import KvRefused, Lease, Leased, Release
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.telemetry.context import inject
from slipstream.shared.telemetry.logging import request_fields
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.host import WorkerHost

log = structlog.get_logger()

_FIRST_WAIT_S = 0.01
_MAX_WAIT_S = 0.2


class JobEndedError(SlipstreamError):
    """A job can't go on; `code` says why."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


async def lease_blocks(
    bus: Bus,
    host: WorkerHost,
    worker: tuple[WorkerId, int],
    job: SequenceJob,
    deadline: Deadline,
    is_cancelled: Callable[[], bool],
    token_ids: Sequence[int],
) -> Leased:
    """
    Lease blocks for a sequence's tokens, of which a prefix may be cached, and have them renewed.

    Raises JobEndedError when the request was cancelled, its time is up, or it can never fit.
    """
    message = Lease(
        request_id=job.request_id,
        attempt=job.attempt,
        worker_id=worker[0],
        worker_epoch=worker[1],
        num_blocks=host.model.layout.num_blocks_for(len(token_ids)),
        layout=host.model.layout.fingerprint,
        # A cached prefix has no logits: what its tokens' logprobs are would be left out.
        token_ids=PackedInts(token_ids if job.sampling.num_prompt_logprobs is None else ()),
        cache_salt=job.cache_salt,
        adapter=job.adapter,
        model_fingerprint=host.model.fingerprint,
        numerics=host.numerics,
    )
    try:
        asked_at, leased = await _ask(bus, host, message, job, deadline, is_cancelled)
    except SlipstreamError:
        # A lease whose answer was lost would be renewed by nobody. Unasked it costs nothing.
        release = Release(
            request_id=job.request_id, attempt=job.attempt, worker_id=message.worker_id
        )
        with contextlib.suppress(SlipstreamError):
            await call_kv(bus, host.host_id, release)
        raise
    host.keeper.hold(leased.lease_id, asked_at, (job.request_id, job.attempt), job.root_span)
    return leased


async def _ask(
    bus: Bus,
    host: WorkerHost,
    message: Lease,
    job: SequenceJob,
    deadline: Deadline,
    is_cancelled: Callable[[], bool],
) -> tuple[float, Leased]:
    """Ask until there are blocks; return also when the answered question was asked."""
    wait_s = _FIRST_WAIT_S
    headers: dict[str, str] | None = inject(job.attempt_span)
    while True:
        if is_cancelled():
            raise JobEndedError("cancelled", "the request was cancelled")
        if deadline.is_over:
            raise JobEndedError("deadline_exceeded", "no KV blocks before the deadline")
        asked_at = time.monotonic()
        try:
            answer: Leased | KvRefused = await call_kv(bus, host.host_id, message, headers=headers)
        except DeadlineExceededError as error:
            # Asking again is harmless: a repeat is answered like the first.
            log.warning(
                "lease_unanswered",
                **request_fields(job.request_id, job.root_span),
                attempt=job.attempt,
                error=str(error),
            )
            continue
        if isinstance(answer, Leased):
            return asked_at, answer
        if answer.reason != "no_blocks":
            raise JobEndedError(f"kv_{answer.reason}", answer.message)
        headers = None  # one span for the first try is enough
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _MAX_WAIT_S)
