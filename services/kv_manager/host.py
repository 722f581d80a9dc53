"""What the KV manager owns on its host: lock, arena, the workers' connections, books."""

import asyncio
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import structlog

from slipstream.services.kv_manager.eviction import make_order
from slipstream.services.kv_manager.host_links import HostLinks
from slipstream.services.kv_manager.index_events import IndexEvents
from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.message_checks import check_message
from slipstream.services.kv_manager.pool import BlockPool
from slipstream.services.kv_manager.prefix_cache import PrefixCache
from slipstream.services.kv_manager.prefix_index import PrefixIndex
from slipstream.services.kv_manager.pulls import PullBook
from slipstream.services.kv_manager.second_tier import SecondTier
from slipstream.services.kv_manager.slices import finish_between_turns
from slipstream.services.kv_manager.spill_file import SpillFile
from slipstream.services.kv_manager.transfers import Transfers
from slipstream.services.kv_manager.verbs import KvVerbs
from slipstream.services.kv_manager.waits import LeaseWaits
from slipstream.shared.bus.connection import Connection
from slipstream.shared.config import KvConfig
from slipstream.shared.errors import ArenaError, ConfigurationError
from slipstream.shared.ids import LeaseId, WorkerId, new_host_id
from slipstream.shared.kv.arena import Arena, old_arenas
from slipstream.shared.kv.block_hash import NUM_BITS, BlockHasher
from slipstream.shared.kv.host_link import LinkAnswer, LinkQuestion
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.kv.transfer.plane import PlaneIdentity
from slipstream.shared.messages.common import Message
from slipstream.shared.messages.kv import (
    ArenaWelcome,
    Audit,
    Commit,
    Known,
    KvRequest,
    Lease,
    Match,
    Pull,
)
from slipstream.shared.messages.reports import WorkerDeath
from slipstream.shared.rarely import Rarely
from slipstream.shared.worker.model_source import ServedModel, open_model
from slipstream.shared.worker.reporter import new_epoch
from slipstream.shared.worker.step_note import note_path, remove_notes, take_note

log = structlog.get_logger()

LOCK_NAME = "kv.lock"
_LOCK_WAIT_S = 5.0
_MAX_WAIT_S = 10.0


class Host:
    """One arena and its books."""

    def __init__(
        self,
        arena: Arena,
        model: ServedModel,
        lock: int,
        config: KvConfig,
        connection: Connection,
    ) -> None:
        layout = model.layout
        self.arena = arena
        self.host_id = arena.host_id
        self.epoch = arena.epoch
        self.layout = layout
        num_blocks = arena.num_blocks - 1
        self.events = IndexEvents(self.host_id, self.epoch, num_blocks, is_on=_is_telling(config))
        index = PrefixIndex(BlockHasher(config.block_hash_bits), self.events.changes)
        order = make_order(config.eviction, num_blocks)
        pool = BlockPool(num_blocks, arena.generations, index, order)
        prefixes = PrefixCache(index, layout.block_size, is_on=config.is_prefix_cache_on)
        self.book = LeaseBook(pool, prefixes, layout.block_size, config.lease_ms / 1000)
        self.verbs = KvVerbs(self.book, layout.fingerprint, self.host_id, self.epoch)
        self._waits = LeaseWaits()
        self.book.on_moved = self._lease_moved
        identity = PlaneIdentity(
            self.host_id, self.epoch, layout.fingerprint, model.fingerprint, layout.block_bytes
        )
        self.tier: SecondTier | None = None
        self.transfers = Transfers(arena, identity, PullBook(self.book.table, pool))
        self._lock = lock
        self._config = config
        self._connection = connection
        self._num_known_returns = connection.num_returns
        self._rarely = Rarely()
        self._links: HostLinks | None = None
        # Hears of each worker whose process has ended.
        self.on_died: Callable[[WorkerDeath], None] = lambda _death: None

    @classmethod
    async def open(cls, config: KvConfig, connection: Connection | None = None) -> Self:
        """
        Take the host, remove what a dead manager left, make a new arena.

        No content is ever trusted across a start: a new epoch has a new file. Without a connection
        to NATS the clock of leases stands still: nobody could renew one.
        """
        model = await asyncio.to_thread(open_model, config)
        config.arena_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = await _take_lock(config.arena_dir)
        try:
            arena = await asyncio.to_thread(_make_arena, config, model.layout)
        except BaseException:
            os.close(lock)
            raise
        host = cls(arena, model, lock, config, connection or Connection())
        try:
            await host._start()
        except BaseException:
            await host.close()
            raise
        return host

    async def _start(self) -> None:
        config = self._config
        if config.spill_dir is not None and config.spill_bytes:
            file = SpillFile(config.spill_dir, self.layout.block_bytes, config.spill_bytes)
            hasher = BlockHasher(config.block_hash_bits)
            self.tier = SecondTier(self.book, self.arena, file, hasher, self._connection.now)
        try:
            await self.transfers.start(config)
        except OSError as error:
            raise ConfigurationError(
                f"--transfer-listen {config.transfer_listen} can't be had: {error.strerror}"
            ) from error
        welcome = ArenaWelcome(
            host_id=self.host_id,
            epoch=self.epoch,
            path=self.arena.path.name,
            num_blocks=self.arena.num_blocks,
            layout=self.layout.fingerprint,
            lease_ms=config.lease_ms,
            transfer_addresses=self.transfers.addresses,
        )
        self._links = HostLinks(
            config.arena_dir, welcome, self.book.worker_joined, self._worker_gone, self._asked
        )
        await self._links.start()

    async def answer(self, message: KvRequest) -> Message:
        """Serve one message; most at once, some take their time. Raises InvalidRequestError."""
        check_message(message)
        if isinstance(message, Match) and message.wait_ms > 0:
            await self._wait_for_more(message)
        if self.tier is not None:
            await self._ask_tier(self.tier, message)
        if isinstance(message, Pull) and message.origin.layout == self.layout.fingerprint:
            return await self.transfers.pull(message)
        if isinstance(message, Known):
            return self.events.known(self.book.prefixes.index, message)
        if isinstance(message, Audit):
            return await finish_between_turns(self.verbs.audit(message, self.now()))
        return self.verbs.answer(message, self.now())

    async def _ask_tier(self, tier: SecondTier, message: KvRequest) -> None:
        if isinstance(message, Commit):
            tier.saw_commit(message, self.now())
        elif isinstance(message, Lease) and message.layout == self.layout.fingerprint:
            known = self.book.table.of_attempt((message.request_id, message.attempt))
            if known is None:
                await tier.restore(message)

    async def _wait_for_more(self, match: Match) -> None:
        """Wait as long as a match allows for a prefix that somebody is computing to get longer."""
        lease_id = self.book.awaited(match, self.now())
        if lease_id is not None:
            await self._waits.wait(lease_id, min(match.wait_ms / 1000, _MAX_WAIT_S))

    async def sweep_loop(self) -> None:
        """End leases that ran out, on a timer of its own: leaks must not wait for new work."""
        while True:
            await asyncio.sleep(min(1.0, self.book.lease_s / 4))
            self._sweep()

    def _sweep(self) -> None:
        if not self._connection.is_up:
            return
        if self._num_known_returns != self._connection.num_returns:
            self._num_known_returns = self._connection.num_returns
            self.book.table.renew_all(self.now() + self.book.lease_s)
            log.info("leases_renewed_after_outage", num_leases=len(self.book.table))
        # Leases know no trace: a request's other lines have both ids.
        for lease_id, (request_id, attempt) in self.book.sweep(self.now()).items():
            log.warning("lease_expired", lease_id=lease_id, request_id=request_id, attempt=attempt)

    def now(self) -> float:
        """Return the time by which leases end."""
        return self._connection.now()

    async def close(self) -> None:
        """Hang up and remove the arena."""
        if self._links is not None:
            await self._links.stop()
        await self.transfers.stop()
        if self.tier is not None:
            self.tier.close()
        self.arena.remove()
        self.arena.close()
        os.close(self._lock)

    def _lease_moved(self, lease_id: LeaseId) -> None:
        self._waits.moved(lease_id)
        if lease_id not in self.book.table.leases:
            self.transfers.lease_ended(lease_id)

    def _asked(self, question: LinkQuestion) -> LinkAnswer:
        if (num_held := self._rarely.is_due(str(question.worker_id))) is not None:
            log.info("asked_by_socket", by=question.worker_id, num_held_back=num_held)
        answer = self.verbs.answer(question, self.now())
        assert isinstance(answer, LinkAnswer), "these verbs have no other answers"
        return answer

    def _worker_gone(self, worker_id: WorkerId, epoch: int) -> None:
        num_blocks = self.book.worker_gone(worker_id, epoch)
        in_step = take_note(note_path(self._config.arena_dir, worker_id))
        log.info(
            "worker_gone",
            gone_worker_id=worker_id,
            num_blocks=num_blocks,
            num_in_step=len(in_step),
        )
        self.on_died(WorkerDeath(worker_id=worker_id, epoch=epoch, in_step=in_step))


def _is_telling(config: KvConfig) -> bool:
    """Tell whether others are told what is known here; hashes cut short would tell them nothing."""
    return config.is_prefix_cache_on and config.block_hash_bits == NUM_BITS


def _make_arena(config: KvConfig, layout: KvLayout) -> Arena:
    """Remove what a dead manager left, then make a new arena. Blocks."""
    for old in old_arenas(config.arena_dir):
        log.info("old_arena_removed", path=old.name)
        old.unlink(missing_ok=True)
    remove_notes(config.arena_dir)
    num_blocks = _num_blocks(config, layout)
    arena = Arena.create(config.arena_dir, new_host_id(), new_epoch(), num_blocks + 1, layout)
    log.info(
        "arena_made",
        num_blocks=num_blocks,
        block_bytes=layout.block_bytes,
        epoch=arena.epoch,
        layout=layout.fingerprint,
    )
    return arena


def _num_blocks(config: KvConfig, layout: KvLayout) -> int:
    num_blocks = config.num_blocks or config.memory_bytes // layout.block_bytes
    if num_blocks < 1:
        raise ConfigurationError(
            f"--kv-memory of {config.memory_bytes} bytes holds no block of {layout.block_bytes}"
        )
    return num_blocks


async def _take_lock(directory: Path) -> int:
    """Hold the directory's lock, waiting for a manager that is just ending."""
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise ArenaError(
                    f"another KV manager serves {directory}; a host has one, or give this one "
                    "its own --arena-dir"
                ) from error
            await asyncio.sleep(0.1)
        else:
            return descriptor
