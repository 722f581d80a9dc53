"""Blocks that this worker holds ahead of need, so that no step waits for a message."""

import asyncio
import contextlib

import structlog

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import call_kv
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import HostId, LeaseId, WorkerId
from slipstream.shared.messages.kv import Blocks, Grant, Granted, KvRefused
from slipstream.shared.messages.packed import PackedInts

log = structlog.get_logger()

_RETRY_S = 0.02
_RETURN_AGAIN_S = 1.0
_NUM_KEPT = 2  # of the blocks that are wanted back: the next step may need one


class BlockGrants:
    """Take blocks at once; a refill runs beside the steps."""

    def __init__(
        self, bus: Bus, host_id: HostId, worker: tuple[WorkerId, int], num_target_blocks: int
    ) -> None:
        self._bus = bus
        self._host_id = host_id
        self._worker_id, self._epoch = worker
        self._num_target = num_target_blocks
        self._blocks: list[tuple[int, int]] = []  # id, generation
        # Given back, but not known to have arrived: never used again, and returned once more.
        self._returned: list[tuple[int, int]] = []
        self._asking = asyncio.Lock()
        self._number = 0  # of the last question
        self._unanswered: Grant | None = None
        self._is_idle = True
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self.is_exhausted = False  # the last answer brought nothing
        self.short_lease_id: LeaseId | None = None  # of who can't go on without

    @property
    def num_blocks(self) -> int:
        """Blocks at hand."""
        return len(self._blocks)

    def prepare(self) -> None:
        """Have blocks fetched: a sequence is about to run."""
        self._is_idle = False
        if len(self._blocks) < self._num_target:
            self._wanted.set()

    def take(self, num_blocks: int) -> list[tuple[int, int]] | None:
        """Take blocks, or None when there are too few at hand (more are asked for)."""
        if len(self._blocks) - num_blocks < self._num_target // 2:
            self._wanted.set()
        if num_blocks > len(self._blocks):
            return None
        taken, self._blocks = self._blocks[:num_blocks], self._blocks[num_blocks:]
        return taken

    def expect(self) -> None:
        """Some blocks are free again: what the pool has is to be found out anew."""
        self.is_exhausted = False
        if not self._is_idle:
            self._wanted.set()

    async def give_back(self) -> None:
        """Return all blocks at hand: nothing runs here."""
        self._is_idle = True
        self._wanted.clear()
        self.is_exhausted = False
        self._returned += self._blocks
        self._blocks = []
        if self._returned or self._unanswered is not None:
            await self._ask(0)
        if self._is_idle and (self._returned or self._blocks or self._unanswered is not None):
            # Unheard: what was given back, or granted, is held by nobody until the loop asks again.
            self._wanted.set()

    def wake(self) -> None:
        """Have whoever waits for blocks look again."""
        self._changed.set()

    def give_up(self, num_blocks: int) -> Blocks:
        """Let go of idle blocks that the manager wants back, but for a few."""
        num_given = max(0, min(num_blocks, len(self._blocks) - _NUM_KEPT))
        given, self._blocks = self._blocks[:num_given], self._blocks[num_given:]
        # The answer may get lost.
        self._returned += given
        return _as_blocks(given)

    async def wait_changed(self, timeout_s: float) -> None:
        """Return when a refill was answered or blocks have come, or after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    async def refill_loop(self) -> None:
        """Keep the grant near its target for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._is_idle:
                await self._give_back_later()
                continue
            await self._refill()
            if self.is_exhausted:
                await asyncio.sleep(_RETRY_S)

    async def _give_back_later(self) -> None:
        """Return what an unheard answer may have left here, unless there is work before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETURN_AGAIN_S):
                await self._wanted.wait()
                return
        await self.give_back()

    async def _refill(self) -> None:
        num_blocks = self._num_target - len(self._blocks)
        if num_blocks <= 0:
            return
        await self._ask(num_blocks)
        if self._is_idle:
            await self.give_back()
        self._changed.set()

    async def _ask(self, num_blocks: int) -> None:
        async with self._asking:
            # What an unheard answer brought is held by nobody until the question is asked again.
            if self._unanswered is not None and not await self._send(self._unanswered):
                return
            self._number += 1
            await self._send(
                Grant(
                    worker_id=self._worker_id,
                    worker_epoch=self._epoch,
                    num_blocks=num_blocks,
                    returned=_as_blocks(self._returned),
                    short_lease_id=self.short_lease_id,
                    number=self._number,
                )
            )

    async def _send(self, message: Grant) -> bool:
        """Ask, and take what is granted; False without an answer."""
        try:
            answer: Granted | KvRefused = await call_kv(self._bus, self._host_id, message)
        except SlipstreamError as error:
            # Slow is not exhausted: nobody is preempted for it.
            log.warning("grant_unanswered", error=str(error))
            self._unanswered = message
            return False
        self._unanswered = None
        granted = answer.blocks if isinstance(answer, Granted) else Blocks()
        returned = set(zip(message.returned.block_ids, message.returned.generations, strict=True))
        self._returned = [block for block in self._returned if block not in returned]
        if message.num_blocks > 0:
            self.is_exhausted = not granted.block_ids
        self._blocks += zip(granted.block_ids, granted.generations, strict=True)
        return True


def _as_blocks(blocks: list[tuple[int, int]]) -> Blocks:
    return Blocks(
        PackedInts(block_id for block_id, _ in blocks),
        PackedInts(generation for _, generation in blocks),
    )
