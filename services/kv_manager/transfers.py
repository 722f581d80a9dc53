"""Blocks that travel between hosts: what other managers may read here, what this one fetches."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import structlog

from slipstream.services.kv_manager.pulls import PullBook
from slipstream.shared.config import KvConfig
from slipstream.shared.ids import LeaseId
from slipstream.shared.kv.arena import Arena
from slipstream.shared.kv.transfer.nats import NatsPlane
from slipstream.shared.kv.transfer.nats_server import NatsServer
from slipstream.shared.kv.transfer.plane import (
    FetchRequest,
    PlaneIdentity,
    TransferError,
    TransferPlane,
)
from slipstream.shared.kv.transfer.tcp import TcpPlane
from slipstream.shared.kv.transfer.tcp_server import TcpServer
from slipstream.shared.messages.kv import KvRefused, Pull, Pulled
from slipstream.shared.tls import transfer_tls

log = structlog.get_logger()

# A cut link shows by then; the request is tried again while its client still waits.
_LONGEST_PULL_S = 10.0


class ArenaSource:
    """This host's arena as other managers may read it: under a lease that knows the blocks."""

    def __init__(self, arena: Arena, identity: PlaneIdentity, book: PullBook) -> None:
        self.identity = identity
        self.blocks = arena.blocks
        self.generations = arena.generations
        self._book = book

    def may_read(
        self, lease_id: str, block_ids: Sequence[int], generations: Sequence[int]
    ) -> str | None:
        """Return None, or the reason why not; generations are compared by whoever reads."""
        del generations
        return self._book.may_read(LeaseId(lease_id), block_ids)


class Transfers:
    """The planes of a host, those that it serves and those that it fetches by."""

    def __init__(self, arena: Arena, identity: PlaneIdentity, book: PullBook) -> None:
        self._arena = arena
        self._identity = identity
        self._book = book
        self._source = ArenaSource(arena, identity, book)
        self._planes: dict[str, TransferPlane] = {}  # in the order of preference
        self._running: dict[LeaseId, set[asyncio.Task[None]]] = {}
        self._exits = AsyncExitStack()
        self.addresses: dict[str, str] = {}

    async def start(self, config: KvConfig) -> None:
        """Listen on each plane asked for. Raises OSError, DisconnectedError, ConfigurationError."""
        tls = await asyncio.to_thread(transfer_tls, config)
        for name in config.planes:
            if name == "tcp":
                host, port = config.listen_address
                server = await TcpServer.start(
                    self._source, host, port, tls=tls.server if tls else None
                )
                self._exits.push_async_callback(server.stop)
                self._planes[name] = TcpPlane(self._identity, tls=tls.client if tls else None)
                self.addresses[name] = config.transfer_advertise or server.address
            else:
                over_nats = await NatsServer.start(
                    self._source, config.nats_url, access=config.nats_access
                )
                self._exits.push_async_callback(over_nats.stop)
                self._planes[name] = await NatsPlane.connect(
                    self._identity, config.nats_url, access=config.nats_access
                )
                self.addresses[name] = over_nats.address
            self._exits.push_async_callback(self._planes[name].close)

    async def stop(self) -> None:
        """Fetch and serve no more; nothing touches the arena afterwards."""
        for tasks in self._running.values():
            for task in tasks:
                task.cancel()
        await self._exits.aclose()

    def lease_ended(self, lease_id: LeaseId) -> None:
        """Stop filling the blocks of a lease that is over."""
        for task in self._running.get(lease_id, ()):
            task.cancel()

    async def pull(self, message: Pull) -> Pulled | KvRefused:
        """Copy blocks of another host into a lease of this one."""
        plane = next((each for each in self._planes if each in message.origin.addresses), None)
        if plane is None:
            return KvRefused(
                reason="no_common_plane",
                message=f"this host moves KV by {sorted(self._planes)},"
                f" host {message.origin.host_id} by {sorted(message.origin.addresses)}",
            )
        block_ids = self._book.begin(message)
        if isinstance(block_ids, KvRefused):
            return block_ids
        try:
            return await self._pull(message, plane, block_ids)
        finally:
            self._book.end(message.lease_id)

    async def _pull(self, message: Pull, plane: str, block_ids: list[int]) -> Pulled | KvRefused:
        started = time.monotonic()
        fetching = asyncio.create_task(self._fetch(message, plane, block_ids))
        running = self._running.setdefault(message.lease_id, set())
        running.add(fetching)
        try:
            await fetching
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return KvRefused(reason="expired", message="the lease ended during the transfer")
        except TransferError as error:
            log.warning("pull_failed", code=error.code, error=str(error), plane=plane)
            return KvRefused(reason="transfer_failed", message=f"{error.code}: {error}")
        finally:
            running.discard(fetching)
            if not running:
                self._running.pop(message.lease_id, None)
        return Pulled(
            num_blocks=len(block_ids),
            num_bytes=len(block_ids) * self._arena.block_bytes,
            plane=plane,
            duration_ms=(time.monotonic() - started) * 1000,
        )

    async def _fetch(self, message: Pull, plane: str, block_ids: list[int]) -> None:
        size = self._arena.block_bytes
        request = FetchRequest(
            transfer_id=f"{message.request_id}.{message.attempt}.{message.first_block_idx}",
            lease_id=message.origin.lease_id,
            block_ids=message.source.block_ids,
            generations=message.source.generations,
        )
        into = [self._arena.blocks[each * size : (each + 1) * size] for each in block_ids]
        left_ms = _LONGEST_PULL_S * 1000 if message.deadline_ms is None else message.deadline_ms
        await self._planes[plane].fetch(
            message.origin.addresses[plane],
            request,
            into,
            min(_LONGEST_PULL_S, max(0.001, left_ms / 1000)),
        )
