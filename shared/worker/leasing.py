"""Get the blocks of a sequence from the host's KV manager, waiting while there are too few."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import call_kv
from slipstream.shared.errors import DeadlineExceededError, SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.jobs import SequenceJob
from slipstream.shared.messages.kv import KvRefused, Lease, Leased, Match, Prefilled, Release
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.telemetry.context import inject
from slipstream.shared.telemetry.logging import request_fields
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.leased_blocks import LeasedBlocks
from slipstream.shared.worker.report_book import Attempt

log = structlog.get_logger()

_FIRST_WAIT_S = 0.01
_MAX_WAIT_S = 0.2
_NO_TURN_S = 0.05  # between two looks whether the worker's own sequences leave room


class JobEndedError(SlipstreamError):
    """A job can't go on; `code` says why."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True)
class Leasing:
    """What a worker leases with."""

    bus: Bus
    host: WorkerHost
    worker: tuple[WorkerId, int]

    async def lease(
        self,
        job: SequenceJob,
        deadline: Deadline,
        is_cancelled: Callable[[], bool],
        token_ids: Sequence[int],
        *,
        arrived_at: float,
        num_spare: Callable[[], int | None] = lambda: 0,
    ) -> LeasedBlocks:
        """
        Lease blocks for a sequence's tokens when its turn comes, and have the lease renewed.

        `arrived_at` is the request's arrival on this process's monotonic clock, `num_spare` says
        how many blocks must be left over, or None for not now. A prefix may be cached; one that
        somebody else is computing is waited for. The caller tells the host's gate how far the
        sequence is, and leaves it. Raises JobEndedError when the request was cancelled, its time is
        up, or it can never fit.
        """
        gate, attempt = self.host.gate, (job.request_id, job.attempt)
        message = self._message(job, token_ids)
        asking = _Asking(self, job, deadline, is_cancelled, message, arrived_at, num_spare)
        try:
            asked_at, leased = await asking.until_leased()
        except BaseException:
            gate.leave(attempt)
            await self.give_up(attempt)
            raise
        self.host.keeper.hold(leased.lease_id, asked_at, attempt, job.root_span)
        try:
            blocks = await self._prepared(leased)
        except BaseException:
            gate.leave(attempt)
            await self.host.keeper.release(leased.lease_id, attempt)
            raise
        gate.update(attempt, len(token_ids) - blocks.num_cached_tokens)
        return blocks

    async def _prepared(self, leased: Leased) -> LeasedBlocks:
        """Return a lease's blocks, the first that isn't cached begun with what can be copied."""
        host = self.host
        blocks = LeasedBlocks.of(leased, host.model.layout.block_size)
        if leased.copy is not None and blocks.num_slots > blocks.num_cached_tokens:
            await host.engine.run(partial(blocks.copy, host.arena, leased.copy))
            if not host.keeper.is_safe(leased.lease_id, 0.0):
                raise JobEndedError("lease_lost", "the lease ran out")
        return blocks

    async def give_up(self, attempt: Attempt) -> None:
        """
        Have an attempt's lease end, though its answer was lost or is still to be made.

        Nobody would renew it, nor prove that nothing writes there. Unasked for it costs nothing.
        """
        release = Release(
            request_id=attempt[0],
            attempt=attempt[1],
            worker_id=self.worker[0],
            is_tombstone=True,
        )
        with contextlib.suppress(SlipstreamError):
            await call_kv(self.bus, self.host.host_id, release)

    async def lease_to_fill(self, prefilled: Prefilled) -> LeasedBlocks | None:
        """
        Lease all blocks of a sequence that is computed on another host, or None without enough.

        Nobody computes there, so it is nobody's turn. Raises JobEndedError when it can never fit.
        """
        asked_at = time.monotonic()
        message = self._message(prefilled, prefilled.token_ids)
        message = msgspec.structs.replace(message, num_first_blocks=None, is_patient=False)
        answer: Leased | KvRefused = await call_kv(self.bus, self.host.host_id, message)
        if isinstance(answer, KvRefused):
            if answer.reason != "no_blocks":
                raise JobEndedError(f"kv_{answer.reason}", answer.message)
            return None
        attempt = (prefilled.request_id, prefilled.attempt)
        self.host.keeper.hold(answer.lease_id, asked_at, attempt)
        return LeasedBlocks.of(answer, self.host.model.layout.block_size)

    def _message(self, job: SequenceJob | Prefilled, token_ids: Sequence[int]) -> Lease:
        model = self.host.model
        # A cached prefix has no logits: what its tokens' logprobs are would be left out.
        is_scored = isinstance(job, SequenceJob) and job.sampling.num_prompt_logprobs is not None
        return Lease(
            request_id=job.request_id,
            attempt=job.attempt,
            worker_id=self.worker[0],
            worker_epoch=self.worker[1],
            num_blocks=self.host.num_blocks_of(len(token_ids)),
            num_first_blocks=model.layout.num_blocks_for(self.host.num_tokens_ahead),
            layout=model.layout.fingerprint,
            token_ids=PackedInts(() if is_scored else token_ids),
            cache_salt=job.cache_salt,
            adapter=job.adapter,
            model_fingerprint=model.fingerprint,
            numerics=self.host.numerics,
            is_patient=True,
            priority=job.priority,
            elapsed_ms=job.elapsed_ms,
        )


@dataclass
class _Asking:
    """One sequence on its way to a lease."""

    leasing: Leasing
    job: SequenceJob
    deadline: Deadline
    is_cancelled: Callable[[], bool]
    message: Lease
    arrived_at: float
    num_spare: Callable[[], int | None]
    wait_s: float = _FIRST_WAIT_S
    is_unanswered: bool = False

    async def until_leased(self) -> tuple[float, Leased]:
        """Ask until there are blocks; return also when the answered question was asked."""
        job, host = self.job, self.leasing.host
        attempt = (job.request_id, job.attempt)
        rank = (job.priority, -self.arrived_at)
        headers: dict[str, str] | None = inject(job.attempt_span)
        while True:
            self._check()
            num_spare = self.num_spare()
            # An unheard answer may have brought a lease, which nobody renews until it is known.
            if num_spare is None and not self.is_unanswered:
                host.gate.leave(attempt)
                await asyncio.sleep(_NO_TURN_S)
                continue
            if not await host.gate.enter(attempt, rank, self._num_tokens, _MAX_WAIT_S):
                continue
            asked_at = time.monotonic()
            answer = await self._ask(num_spare or 0, headers)
            self.is_unanswered = answer is None
            if isinstance(answer, Leased):
                return asked_at, answer
            if answer is None:
                continue
            headers = None  # one span for the first try is enough
            if answer.reason == "pending":
                # Not in anybody's way meanwhile.
                host.gate.leave(attempt)
                await self._wait_for_writer()
            elif answer.reason == "no_blocks":
                if num_spare:
                    host.gate.leave(attempt)  # it may wait long, and for others' blocks
                await asyncio.sleep(self.wait_s)
                self.wait_s = min(2 * self.wait_s, _MAX_WAIT_S)
            else:
                raise JobEndedError(f"kv_{answer.reason}", answer.message)

    @property
    def _num_tokens(self) -> int:
        return len(self.job.prompt_token_ids) + len(self.job.output_token_ids)

    def _check(self) -> None:
        if self.is_cancelled():
            raise JobEndedError("cancelled", "the request was cancelled")
        if self.deadline.is_over:
            raise JobEndedError("deadline_exceeded", "no KV blocks before the deadline")

    async def _ask(
        self, num_spare: int, headers: dict[str, str] | None
    ) -> Leased | KvRefused | None:
        """Ask once; None when there was no answer: a repeat is answered like the first."""
        leasing = self.leasing
        # As of now: a preempted sequence is as old as it is.
        elapsed_ms = (time.monotonic() - self.arrived_at) * 1000
        message = msgspec.structs.replace(
            self.message, elapsed_ms=elapsed_ms, num_spare_blocks=num_spare
        )
        try:
            answer: Leased | KvRefused = await call_kv(
                leasing.bus, leasing.host.host_id, message, headers=headers
            )
        except DeadlineExceededError as error:
            log.warning(
                "lease_unanswered",
                **request_fields(self.job.request_id, self.job.root_span),
                attempt=self.job.attempt,
                error=str(error),
            )
            return None
        return answer

    async def _wait_for_writer(self) -> None:
        """Wait until whoever computes our prefix has got on, or a while."""
        message = self.message
        match = Match(
            token_ids=message.token_ids,
            layout=message.layout,
            cache_salt=message.cache_salt,
            adapter=message.adapter,
            model_fingerprint=message.model_fingerprint,
            numerics=message.numerics,
            wait_ms=int(_MAX_WAIT_S * 1000),
        )
        with contextlib.suppress(DeadlineExceededError):
            await call_kv(self.leasing.bus, self.leasing.host.host_id, match)
