"""
Sequences that a prefill worker of another host computes: their KV is fetched while it grows.

The first word of a sequence leases blocks here; each further one has what is new copied into them.
The hand-over brings the rest. Whatever was not fetched ahead is fetched then.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import call_kv
from slipstream.shared.errors import DeadlineExceededError, SlipstreamError
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.jobs import DecodeJob, HandOver
from slipstream.shared.messages.kv import (
    BlockOrigin,
    Blocks,
    KvRefused,
    Prefilled,
    Pull,
    Pulled,
    Release,
    Released,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.leased_blocks import LeasedBlocks
from slipstream.shared.worker.leasing import JobEndedError, Leasing
from slipstream.shared.worker.report_book import Attempt

log = structlog.get_logger()

# What was begun for a sequence that is never handed over goes back after so long without a word.
_FORGOTTEN_S = 10.0
_LONGEST_PULL_S = 12.0  # the manager's own limit comes first
_NO_BLOCKS_S = 0.02
_LOOK_S = 0.05  # between two looks whether a request was cancelled


@dataclass(eq=False)
class _Incoming:
    """One sequence on its way here."""

    attempt: Attempt
    heard_at: float
    leased: LeasedBlocks | None = None
    num_fetched: int = 0  # blocks, those cached here included
    is_over: bool = False  # given up: nothing more is leased or fetched
    working: asyncio.Lock = field(default_factory=asyncio.Lock)


class RemotePulls:
    """Owns the leases of sequences between their first word and their hand-over."""

    def __init__(self, bus: Bus, leasing: Leasing, max_num_sequences: int) -> None:
        self._bus = bus
        self._leasing = leasing
        self._max_num = max_num_sequences
        self._incoming: dict[Attempt, _Incoming] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_incoming(self) -> int:
        """Sequences that may hold blocks here and aren't handed over yet."""
        return len(self._incoming)

    def prefilled(self, message: Prefilled) -> None:
        """Fetch what is new of a sequence that is expected here, beside everything else."""
        attempt = (message.request_id, message.attempt)
        known = self._incoming.get(attempt)
        if known is None:
            if len(self._incoming) >= self._max_num:
                return
            known = self._incoming[attempt] = _Incoming(attempt, time.monotonic())
            self._run(self._forget_in_time(known))
        known.heard_at = time.monotonic()
        self._run(self._fetch_ahead(known, message))

    async def take(
        self, job: DecodeJob, deadline: Deadline, is_cancelled: Callable[[], bool]
    ) -> LeasedBlocks:
        """
        Fetch the rest of a sequence that is handed over, and return its blocks, all filled.

        Raises JobEndedError when they can't be fetched. The other host's lease ends with it.
        """
        hand_over = job.hand_over
        assert hand_over is not None, "only a handed over sequence is fetched"
        if hand_over.origin is None:
            raise JobEndedError("kv_stale_epoch", "the sequence lies in another arena")
        attempt = (job.request_id, job.attempt)
        # Ours from here on: what else is said of it is late, and nobody forgets it.
        incoming = self._incoming.pop(attempt, None) or _Incoming(attempt, time.monotonic())
        whole = _as_prefilled(job, hand_over, hand_over.origin)
        taking = asyncio.create_task(self._take(incoming, whole, deadline))
        try:
            leased = await self._taken(taking, is_cancelled)
        except BaseException:
            # First: the manager stops a transfer when its lease ends, and we need not wait for it.
            await self._give_up(incoming)
            taking.cancel()
            await asyncio.wait([taking])
            raise
        finally:
            self._run(self._release_origin(whole))
        return leased

    async def _taken(
        self, taking: "asyncio.Task[LeasedBlocks]", is_cancelled: Callable[[], bool]
    ) -> LeasedBlocks:
        while not taking.done():
            await asyncio.wait([taking], timeout=_LOOK_S)
            if is_cancelled() and not taking.done():
                raise JobEndedError("cancelled", "the request was cancelled")
        leased = taking.result()
        if not self._leasing.host.keeper.is_safe(leased.lease_id, 0.0):
            raise JobEndedError("lease_lost", "the lease on its KV blocks ran out")
        return leased

    def drop(self, attempt: Attempt) -> None:
        """Give back what was begun for a sequence that won't come."""
        incoming = self._incoming.pop(attempt, None)
        if incoming is not None:
            self._run(self._give_up(incoming))

    async def close(self) -> None:
        """Fetch nothing more; the end of the process gives the blocks back."""
        await cancel_all(list(self._tasks))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        # Any: a coroutine's send type
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(
        self, incoming: _Incoming, message: Prefilled, deadline: Deadline
    ) -> LeasedBlocks:
        while incoming.leased is None:
            if deadline.is_over:
                raise JobEndedError("deadline_exceeded", "no KV blocks before the deadline")
            try:
                await self._lease(incoming, message)
            except DeadlineExceededError:
                continue  # a repeat is answered like the first
            if incoming.leased is None:
                await asyncio.sleep(_NO_BLOCKS_S)
        await self._fetch(incoming, message, len(message.blocks.block_ids))
        return incoming.leased

    async def _fetch_ahead(self, incoming: _Incoming, message: Prefilled) -> None:
        num_whole = message.num_tokens // self._leasing.host.model.layout.block_size
        try:
            await self._lease(incoming, message)
            await self._fetch(incoming, message, num_whole)
        except SlipstreamError as error:
            # The hand-over tries again, and then it counts.
            log.info("not_fetched_ahead", request_id=message.request_id, error=str(error))

    async def _lease(self, incoming: _Incoming, message: Prefilled) -> None:
        async with incoming.working:
            _check_wanted(incoming)
            if incoming.leased is not None:
                return
            leased = await self._leasing.lease_to_fill(message)
            if leased is None:
                return
            incoming.leased = leased
            incoming.num_fetched = leased.num_cached_in_blocks // leased.block_size
        if incoming.is_over:
            # Given up while the answer was on its way.
            await self._release(incoming)

    async def _fetch(self, incoming: _Incoming, message: Prefilled, num_blocks: int) -> None:
        """Copy the blocks from the last fetched one up to a number, then let others find them."""
        async with incoming.working:
            _check_wanted(incoming)
            leased, first = incoming.leased, incoming.num_fetched
            if leased is None or num_blocks <= first:
                return
            await self._pull(incoming, leased, message, num_blocks)
            _check_wanted(incoming)
            incoming.num_fetched = num_blocks
            end = min(num_blocks, message.num_tokens // leased.block_size) * leased.block_size
            new = message.token_ids[first * leased.block_size : end]
            await self._leasing.host.keeper.commit(leased.lease_id, end, new)

    async def _pull(
        self, incoming: _Incoming, leased: LeasedBlocks, message: Prefilled, num_blocks: int
    ) -> None:
        first = incoming.num_fetched
        source = Blocks(
            message.blocks.block_ids[first:num_blocks], message.blocks.generations[first:num_blocks]
        )
        pull = Pull(
            request_id=message.request_id,
            attempt=message.attempt,
            deadline_ms=message.deadline_ms,
            lease_id=leased.lease_id,
            worker_id=self._leasing.worker[0],
            origin=message.origin,
            source=source,
            first_block_idx=first,
        )
        answer: Pulled | KvRefused = await call_kv(
            self._bus, self._leasing.host.host_id, pull, timeout_s=_LONGEST_PULL_S
        )
        if isinstance(answer, KvRefused):
            raise JobEndedError(f"kv_{answer.reason}", answer.message)
        host = self._leasing.host
        num_tokens = answer.num_blocks * host.model.layout.block_size
        host.speeds.pulls.saw(num_tokens, answer.duration_ms / 1000)

    async def _give_up(self, incoming: _Incoming) -> None:
        """Let go of a sequence, whatever is under way for it."""
        incoming.is_over = True
        await self._release(incoming)

    async def _release(self, incoming: _Incoming) -> None:
        leased, incoming.leased = incoming.leased, None
        if leased is not None:
            await self._leasing.host.keeper.release(leased.lease_id, incoming.attempt)
        else:
            await self._leasing.give_up(incoming.attempt)

    async def _forget_in_time(self, incoming: _Incoming) -> None:
        while self._incoming.get(incoming.attempt) is incoming:
            left_s = incoming.heard_at + _FORGOTTEN_S - time.monotonic()
            if left_s <= 0:
                log.warning("never_handed_over", request_id=incoming.attempt[0])
                del self._incoming[incoming.attempt]
                await self._give_up(incoming)
                return
            await asyncio.sleep(left_s)

    async def _release_origin(self, message: Prefilled) -> None:
        """
        End the lease of the other host: its prefill worker has handed over and writes no more.

        Without an answer the lease goes back when its holder sees that nobody adopted it.
        """
        release = Release(
            request_id=message.request_id,
            attempt=message.attempt,
            lease_id=message.origin.lease_id,
            worker_id=message.origin.worker_id,
        )
        try:
            _: Released | KvRefused = await call_kv(self._bus, message.origin.host_id, release)
        except SlipstreamError as error:
            log.info("origin_not_released", request_id=message.request_id, error=str(error))


def _check_wanted(incoming: _Incoming) -> None:
    if incoming.is_over:
        raise JobEndedError("cancelled", "the sequence was given up")


def _as_prefilled(job: DecodeJob, hand_over: HandOver, origin: BlockOrigin) -> Prefilled:
    """Return the last word of a sequence: all of it is computed."""
    token_ids = PackedInts([*job.prompt_token_ids, *job.output_token_ids])
    return Prefilled(
        request_id=job.request_id,
        attempt=job.attempt,
        deadline_ms=job.deadline_ms,
        origin=origin,
        blocks=Blocks(hand_over.block_ids, hand_over.generations),
        num_tokens=hand_over.num_computed_tokens,
        token_ids=token_ids,
        cache_salt=job.cache_salt,
        adapter=job.adapter,
        priority=job.priority,
        elapsed_ms=job.elapsed_ms,
    )
