"""The lease book's messages in short."""

from array import array
from collections.abc import Sequence

from slipstream.services.kv_manager.eviction import make_order
from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.pool import BlockPool, BlockState
from slipstream.services.kv_manager.prefix_cache import PrefixCache
from slipstream.services.kv_manager.prefix_index import PrefixIndex
from slipstream.services.kv_manager.records import Holder
from slipstream.shared.config import Eviction
from slipstream.shared.ids import LeaseId, RequestId, WorkerId
from slipstream.shared.kv.block_hash import NUM_BITS, BlockHasher
from slipstream.shared.messages.kv import (
    Adopt,
    Adopted,
    Blocks,
    Commit,
    Committed,
    Grant,
    KvRefused,
    Lease,
    Leased,
    LeaseRenewal,
    Release,
    Renew,
)
from slipstream.shared.messages.packed import PackedInts

LEASE_S = 30.0
BLOCK_SIZE = 4
SHORT = LeaseId("short")
A, B = (WorkerId("a"), 1), (WorkerId("b"), 1)


def make_pool(
    num_blocks: int = 4, hash_bits: int = NUM_BITS, eviction: Eviction = "filtered"
) -> BlockPool:
    index = PrefixIndex(BlockHasher(hash_bits))
    generations = array("I", [0] * (num_blocks + 1))
    return BlockPool(num_blocks, generations, index, make_order(eviction, num_blocks))


def make_book(
    num_blocks: int = 8,
    hash_bits: int = NUM_BITS,
    *,
    is_caching: bool = True,
    eviction: Eviction = "filtered",
) -> LeaseBook:
    pool = make_pool(num_blocks, hash_bits, eviction)
    prefixes = PrefixCache(pool.index, BLOCK_SIZE, is_on=is_caching)
    book = LeaseBook(pool, prefixes, BLOCK_SIZE, LEASE_S)
    for worker_id, epoch in (A, B):
        book.worker_joined(worker_id, epoch)
    return book


def lease(
    book: LeaseBook,
    num_blocks: int = 2,
    holder: Holder = A,
    request: str = "r",
    now: float = 0,
    tokens: Sequence[int] = (),
    num_first: int | None = None,
    *,
    is_patient: bool = False,
    **keys: str,
) -> Leased | KvRefused:
    message = Lease(
        request_id=RequestId(request),
        attempt=1,
        worker_id=holder[0],
        worker_epoch=holder[1],
        num_blocks=num_blocks,
        token_ids=PackedInts(tokens),
        num_first_blocks=num_first,
        is_patient=is_patient,
        **{"layout": "", **keys},
    )
    return book.lease(message, now)


def leased(
    book: LeaseBook,
    num_blocks: int = 2,
    holder: Holder = A,
    request: str = "r",
    tokens: Sequence[int] = (),
    **keys: str,
) -> Leased:
    answer = lease(book, num_blocks, holder, request, tokens=tokens, **keys)
    assert isinstance(answer, Leased)
    return answer


def adopt(
    book: LeaseBook, lease_id: LeaseId, now: float = 0, to: Holder = B
) -> Adopted | KvRefused:
    message = Adopt(
        request_id=RequestId("r"),
        attempt=1,
        lease_id=lease_id,
        from_worker_id=A[0],
        to_worker_id=to[0],
        to_worker_epoch=to[1],
    )
    return book.adopt(message, now)


def commit(
    book: LeaseBook,
    lease_id: LeaseId,
    num_tokens: int,
    tokens: Sequence[int] = (),
    holder: Holder = A,
    grown: Blocks | None = None,
    num_known: int = 0,
    num_wanted: int = 0,
    now: float = 0.0,
) -> Committed | KvRefused:
    message = Commit(
        request_id=RequestId("r"),
        attempt=1,
        lease_id=lease_id,
        worker_id=holder[0],
        num_tokens=num_tokens,
        token_ids=PackedInts(tokens),
        grown=grown or Blocks(),
        num_known_blocks=num_known,
        num_wanted_blocks=num_wanted,
    )
    return book.commit(message, now)


def release(
    book: LeaseBook,
    lease_id: LeaseId | None,
    holder: Holder = A,
    grown: Blocks | None = None,
    request: str = "r",
) -> bool:
    message = Release(
        request_id=RequestId(request),
        attempt=1,
        lease_id=lease_id,
        worker_id=holder[0],
        grown=grown or Blocks(),
    )
    return book.release(message, 0).was_held


def grant(
    book: LeaseBook, num_blocks: int, holder: Holder = B, short: LeaseId | None = SHORT
) -> Blocks:
    """Ask for blocks, as somebody who can't go on without."""
    message = Grant(
        worker_id=holder[0], worker_epoch=holder[1], num_blocks=num_blocks, short_lease_id=short
    )
    return book.grant(message, 0.0).blocks


def renew(
    book: LeaseBook, lease_id: LeaseId, holder: Holder, grown: Blocks | None = None, now: float = 0
) -> list[LeaseId]:
    renewal = LeaseRenewal(lease_id=lease_id, grown=grown or Blocks())
    message = Renew(worker_id=holder[0], worker_epoch=holder[1], renewals=[renewal])
    return book.renew(message, now).lost


def reason(answer: object) -> str | None:
    return answer.reason if isinstance(answer, KvRefused) else None


def count(book: LeaseBook, state: BlockState) -> int:
    return book.pool.counts()[state]
