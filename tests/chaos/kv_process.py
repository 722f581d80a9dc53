"""
A KV manager as a process of its own, which also tells a test who may write which block.

`--broken-quarantine` lets blocks of expired leases go straight to whoever wants them next: what is
to notice it is tested with it.
"""

import sys
from typing import cast
from unittest import mock

import msgspec

from slipstream.services.cli.main import main
from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.service import KvService
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.subjects import KV
from slipstream.shared.ids import LeaseId

# Where a KV manager may listen, and an operator ask.
BOOKS = KV.subject(host_id="books", verb="audit")


class Books(msgspec.Struct, frozen=True):
    """Blocks by the id of who may write them, and why."""

    quarantined: dict[str, list[int]]
    granted: dict[str, list[int]]
    leased: dict[str, list[int]]
    num_leases: dict[str, int]

    def writable(self, worker_id: str) -> set[int]:
        """Return all that a worker may write."""
        kinds = (self.quarantined, self.granted, self.leased)
        return {block_id for kind in kinds for block_id in kind.get(worker_id, ())}


def books_of(book: LeaseBook) -> Books:
    """Read the manager's books."""
    books = Books({}, {}, {}, {})
    for quarantine in book.table.quarantines.values():
        books.quarantined.setdefault(quarantine.holder[0], []).extend(quarantine.block_ids)
    for holder, block_ids in book.grants._by_holder.items():
        books.granted.setdefault(holder[0], []).extend(block_ids)
    for lease in book.table.leases.values():
        worker_id = lease.holder[0]
        books.leased.setdefault(worker_id, []).extend(lease.writable_ids)
        books.num_leases[worker_id] = books.num_leases.get(worker_id, 0) + 1
    return books


def _show_books() -> None:
    start = KvService.start

    async def start_and_show(self: KvService) -> None:
        await start(self)

        async def show(incoming: Incoming) -> None:
            books = msgspec.json.encode(books_of(self.host.book))
            await self._bus.publish(cast("str", incoming.reply), books)

        await self._bus.subscribe(BOOKS, show)

    mock.patch.object(KvService, "start", start_and_show).start()


def _break_quarantine() -> None:
    sweep = LeaseBook.sweep

    def sweep_and_free(self: LeaseBook, now: float) -> dict[LeaseId, tuple[str, int]]:
        expired = sweep(self, now)
        for quarantine in self.table.quarantines.values():
            self.pool.free(quarantine.block_ids)
        self.table.quarantines.clear()
        return cast("dict[LeaseId, tuple[str, int]]", expired)

    mock.patch.object(LeaseBook, "sweep", sweep_and_free).start()


if __name__ == "__main__":
    _show_books()
    if "--broken-quarantine" in sys.argv:
        sys.argv.remove("--broken-quarantine")
        _break_quarantine()
    main()
