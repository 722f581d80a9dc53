"""
Blocks that are evicted go to a file first, and come back when that is sooner than computing them.

What lies there is a tree of prefixes as in memory, its blocks being slots of the file. To the books
a block that comes back is written by a worker like any other: leased, filled, committed, released.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TypeVar

import structlog

from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.prefix_index import IndexedBlock
from slipstream.services.kv_manager.spill_file import SpillFile
from slipstream.services.kv_manager.spilled_prefixes import SpilledPrefixes
from slipstream.services.kv_manager.tier_rates import TierRates
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.kv.arena import Arena
from slipstream.shared.kv.block_hash import BYTES_PER_TOKEN, BlockHasher
from slipstream.shared.kv.transfer.threads import run_to_its_end
from slipstream.shared.messages.kv import Commit, Lease, Leased, Release

log = structlog.get_logger()

T = TypeVar("T")

_WORKER = WorkerId("second-tier")
_EPOCH = 0
_INTERVAL_S = 0.02
_AFTER_ERROR_S = 10.0
_NUM_AT_ONCE = 4  # blocks copied between two turns of the event loop
_NUM_AHEAD = 256  # blocks next to be evicted that are looked at in a round
_FREE_PART = 8  # of the pool: with more than that free nothing is evicted soon


class SecondTier:
    """Owns the file."""

    def __init__(
        self,
        book: LeaseBook,
        arena: Arena,
        file: SpillFile,
        hasher: BlockHasher,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is the clock of the books."""
        self._book = book
        self._now = now
        self._arena = arena
        self._file = file
        self.spilled = SpilledPrefixes(file.num_slots, hasher)
        self.rates = TierRates.unknown()
        self.num_restored_blocks = 0
        self._busy = asyncio.Lock()  # no slot is written while it is read
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="second-tier")
        self._seen: dict[int, int] = {}  # blocks that were copied once, in which generation
        self._not_before = 0.0  # a disk that is full is left alone for a while
        self._number = 0
        book.worker_joined(_WORKER, _EPOCH)

    async def spill_loop(self) -> None:
        """Copy what will be evicted next to the file, for ever."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            if self._is_eviction_near() and time.monotonic() > self._not_before:
                await self._spill_some()

    async def restore(self, message: Lease) -> None:
        """Bring back what the file has of a sequence behind what memory has, if that pays."""
        if not len(self.spilled) or self._book.awaited(message, self._now()):
            return
        async with self._busy:
            slots = self._worth_reading(message)
            if slots:
                await self._restore(message, slots)

    def saw_commit(self, message: Commit, now: float) -> None:
        """Learn from a worker's commit, before it counts, how long a token takes to compute."""
        lease = self._book.table.leases.get(message.lease_id)
        if lease is None or lease.was_pulled:
            return
        if message.num_tokens * BYTES_PER_TOKEN > len(lease.packed_tokens):
            return  # its last tokens are generated, which takes longer
        num_tokens = message.num_tokens - lease.num_committed * self._book.block_size
        if num_tokens > 0:
            self.rates.token_s.saw((now - lease.moved_at) / num_tokens)

    def close(self) -> None:
        """Forget everything."""
        self._threads.shutdown()
        self._file.close()

    def _is_eviction_near(self) -> bool:
        pool = self._book.pool
        return pool.num_free < max(1, pool.num_blocks // _FREE_PART)

    async def _spill_some(self) -> None:
        """Copy what is evicted next, until all of it lies in the file."""
        while True:
            async with self._busy:
                slots, contents = self._copied()
                if not slots:
                    return
                started = time.perf_counter()
                try:
                    await self._in_thread(partial(self._file.write, slots, contents))
                except OSError as error:
                    log.warning("not_spilled", error=str(error))
                    self.spilled.forget(slots)
                    self._not_before = time.monotonic() + _AFTER_ERROR_S
                    return
                if self.rates.byte_s.value is None:
                    num_bytes = len(slots) * self._arena.block_bytes
                    self.rates.byte_s.saw((time.perf_counter() - started) / num_bytes)

    def _copied(self) -> tuple[list[int], list[bytes]]:
        """Return slots and contents of a few blocks, those before the next victim first."""
        generations = self._arena.generations
        # Of those next in line, and no further: all that is cached may have been copied long ago.
        for victim in list(islice(self._book.pool.victims(), _NUM_AHEAD)):
            if self._seen.get(victim) == generations[victim]:
                continue
            slots, contents = self._copied_chain(self._book.prefixes.index.chain(victim))
            if len(slots) < _NUM_AT_ONCE:
                # All of it lies there now, or doesn't fit. It isn't copied twice: a file too small
                # for what is cached would be rewritten for ever.
                self._seen[victim] = generations[victim]
            if slots:
                return slots, contents
        return [], []

    def _copied_chain(self, chain: list[IndexedBlock]) -> tuple[list[int], list[bytes]]:
        size = self._arena.block_bytes
        slots: list[int] = []
        contents: list[bytes] = []
        for block in self.spilled.lacking(chain)[:_NUM_AT_ONCE]:
            slot = self.spilled.add(block)
            if slot is None:
                break
            slots.append(slot)
            # Cached blocks are read-only, and nothing else happens while these are copied.
            start = block.block_id * size
            contents.append(bytes(self._arena.blocks[start : start + size]))
        return slots, contents

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run work to its end: a thread that still reads would write into freed blocks."""
        return await run_to_its_end(self._threads, work, _ends_soon)

    def _worth_reading(self, message: Lease) -> list[int]:
        """Return the slots that follow what memory has of a sequence, if reading them pays."""
        prefixes = self._book.prefixes
        in_memory = prefixes.find(message)
        spilled = prefixes.chain_in(self.spilled.index, message)
        slots = [each.block_id for each in spilled[len(in_memory.blocks) :]]
        num_bytes = len(slots) * self._arena.block_bytes
        num_tokens = len(slots) * self._book.block_size
        return slots if self.rates.is_reading_faster(num_bytes, num_tokens) else []

    async def _restore(self, message: Lease, slots: list[int]) -> None:
        block_size, size = self._book.block_size, self._arena.block_bytes
        self._number += 1
        request_id = RequestId(f"restore{self._number}")
        num_blocks = len(self._book.prefixes.find(message).blocks) + len(slots)
        tokens = message.token_ids[: num_blocks * block_size + 1]
        lease = Lease(
            request_id=request_id,
            attempt=0,
            worker_id=_WORKER,
            worker_epoch=_EPOCH,
            num_blocks=num_blocks,
            layout=message.layout,
            token_ids=tokens,
            cache_salt=message.cache_salt,
            adapter=message.adapter,
            model_fingerprint=message.model_fingerprint,
            numerics=message.numerics,
        )
        leased = self._book.lease(lease, self._now())
        if not isinstance(leased, Leased):
            return  # no room: whoever asks computes, or waits
        first = leased.num_cached_tokens // block_size
        places = [
            self._arena.blocks[each * size : (each + 1) * size]
            for each in leased.blocks.block_ids[first:]
        ]
        release = Release(
            request_id=request_id, attempt=0, lease_id=leased.lease_id, worker_id=_WORKER
        )
        started = time.perf_counter()
        try:
            num_read = await self._in_thread(partial(self._file.read, slots, places))
            self._count(slots, num_read, time.perf_counter() - started)
            num_tokens = (first + num_read) * block_size
            commit = Commit(
                request_id=request_id,
                attempt=0,
                lease_id=leased.lease_id,
                worker_id=_WORKER,
                num_tokens=num_tokens,
                token_ids=tokens[:num_tokens],
            )
            self._book.commit(commit, self._now())
        finally:
            self._book.release(release, self._now())

    def _count(self, slots: list[int], num_read: int, seconds: float) -> None:
        self.num_restored_blocks += num_read
        if num_read:
            self.rates.byte_s.saw(seconds / (num_read * self._arena.block_bytes))
            self.spilled.used(slots[num_read - 1])
        if num_read < len(slots):
            log.warning("spilled_block_damaged", slot=slots[num_read])
            self.spilled.forget([slots[num_read]])


def _ends_soon() -> None:
    """Stop nothing: what reads or writes a few blocks has an end."""
