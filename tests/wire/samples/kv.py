"""Samples of the KV manager's verbs, and of its greeting."""

from typing import Any

import msgspec

from slipstream.shared.messages.kv import (
    Adopt,
    Adopted,
    ArenaHello,
    ArenaWelcome,
    Audit,
    Audited,
    BlockCopy,
    Blocks,
    Commit,
    Committed,
    Grant,
    Granted,
    Known,
    KnownBlocks,
    KvRefused,
    Lease,
    Leased,
    LeaseRenewal,
    LeaseSummary,
    Match,
    Matched,
    Prefilled,
    Pull,
    Pulled,
    Reclaim,
    Reclaimed,
    Release,
    Released,
    Renew,
    Renewed,
)
from slipstream.shared.messages.packed import PackedInts

from .parts import (
    ATTEMPT,
    BARE_ORIGIN,
    BLOCKS,
    DECODE_WORKER,
    ENVELOPE,
    FINGERPRINT,
    HOST,
    LAYOUT,
    LEASE,
    NUMERICS,
    ORIGIN,
    OTHER_BLOCKS,
    OTHER_LEASE,
    PREFILL_WORKER,
    REQUEST,
    TOKENS,
)

BOOKS: dict[str, Any] = {
    "host_id": HOST,
    "epoch": 1_234,
    "num_blocks": 64,
    "num_free": 40,
    "num_granted": 8,
    "num_leased": 6,
    "num_committed": 5,
    "num_cached": 4,
    "num_quarantined": 1,
    "num_leases": 2,
}

# Each message once with every field set to something else than its default, once with none.

SAMPLES: dict[str, tuple[msgspec.Struct, msgspec.Struct]] = {
    "kv_refused": (KvRefused("no_blocks", "4 wanted", 3), KvRefused("expired")),
    "match": (
        Match(TOKENS, LAYOUT, "salt", "poet", FINGERPRINT, NUMERICS, 200),
        Match(TOKENS, LAYOUT),
    ),
    "matched": (Matched(32, 16), Matched(0)),
    "lease": (
        Lease(
            **ENVELOPE,
            worker_id=PREFILL_WORKER,
            worker_epoch=9,
            num_blocks=3,
            layout=LAYOUT,
            token_ids=TOKENS,
            cache_salt="salt",
            adapter="poet",
            model_fingerprint=FINGERPRINT,
            numerics=NUMERICS,
            num_first_blocks=2,
            is_patient=True,
            priority=1,
            elapsed_ms=2.5,
            num_spare_blocks=3,
        ),
        Lease(**ATTEMPT, worker_id=PREFILL_WORKER, worker_epoch=9, num_blocks=3, layout=LAYOUT),
    ),
    "leased": (
        Leased(LEASE, BLOCKS, 30_000, 32, 4, BlockCopy(9, 2, 5)),
        Leased(LEASE, Blocks(), 30_000),
    ),
    "commit": (
        Commit(
            **ENVELOPE,
            lease_id=LEASE,
            worker_id=PREFILL_WORKER,
            num_tokens=32,
            token_ids=TOKENS,
            grown=BLOCKS,
            num_known_blocks=2,
            num_wanted_blocks=4,
        ),
        Commit(**ATTEMPT, lease_id=LEASE, worker_id=PREFILL_WORKER, num_tokens=32),
    ),
    "committed": (Committed(2, BLOCKS), Committed(0)),
    "adopt": (
        Adopt(
            **ENVELOPE,
            lease_id=LEASE,
            from_worker_id=PREFILL_WORKER,
            to_worker_id=DECODE_WORKER,
            to_worker_epoch=11,
        ),
        Adopt(
            **ATTEMPT,
            lease_id=LEASE,
            from_worker_id=PREFILL_WORKER,
            to_worker_id=DECODE_WORKER,
            to_worker_epoch=11,
        ),
    ),
    "adopted": (Adopted(LEASE, BLOCKS, 30_000), Adopted(LEASE, Blocks(), 30_000)),
    "renew": (
        Renew(DECODE_WORKER, 11, [LeaseRenewal(LEASE, BLOCKS), LeaseRenewal(OTHER_LEASE)]),
        Renew(DECODE_WORKER, 11, []),
    ),
    "renewed": (Renewed(30_000, [OTHER_LEASE]), Renewed(30_000)),
    "release": (
        Release(
            **ENVELOPE, lease_id=LEASE, worker_id=DECODE_WORKER, grown=BLOCKS, is_tombstone=True
        ),
        Release(**ATTEMPT),
    ),
    "released": (Released(was_held=False), Released()),
    "grant": (Grant(DECODE_WORKER, 11, 16, BLOCKS, LEASE, 7), Grant(DECODE_WORKER, 11, 16)),
    "granted": (Granted(BLOCKS, 40), Granted(Blocks(), 0)),
    "reclaim": (Reclaim(DECODE_WORKER, 4, REQUEST, 2), Reclaim(DECODE_WORKER, 4)),
    "reclaimed": (Reclaimed(DECODE_WORKER, BLOCKS, is_unable=True), Reclaimed(DECODE_WORKER)),
    "pull": (
        Pull(
            **ENVELOPE,
            lease_id=LEASE,
            worker_id=DECODE_WORKER,
            origin=ORIGIN,
            source=OTHER_BLOCKS,
            first_block_idx=2,
        ),
        Pull(
            **ATTEMPT,
            lease_id=LEASE,
            worker_id=DECODE_WORKER,
            origin=BARE_ORIGIN,
            source=Blocks(),
            first_block_idx=0,
        ),
    ),
    "pulled": (Pulled(2, 4_096, "tcp", 1.5), Pulled(0, 0)),
    "prefilled": (
        Prefilled(
            **ENVELOPE,
            origin=ORIGIN,
            blocks=OTHER_BLOCKS,
            num_tokens=32,
            token_ids=TOKENS,
            cache_salt="salt",
            adapter="poet",
            priority=1,
            elapsed_ms=2.5,
        ),
        Prefilled(
            **ATTEMPT, origin=BARE_ORIGIN, blocks=Blocks(), num_tokens=0, token_ids=PackedInts()
        ),
    ),
    "audit": (Audit(with_leases=True), Audit()),
    "audited": (
        Audited(
            **BOOKS,
            num_late_messages=3,
            oldest_lease_ms=1_500,
            problems=["block 7 is counted twice"],
            leases=[LeaseSummary(LEASE, REQUEST, 2, DECODE_WORKER, 3, 2, 28_500)],
            num_indexed=13,
            num_reserved=2,
        ),
        Audited(**BOOKS),
    ),
    "known": (Known(2_001), Known()),
    "known_blocks": (
        KnownBlocks(HOST, 1_234, 5, b"\x00\xff" * 8 + b"\x01" * 16, 4_001),
        KnownBlocks(HOST, 1_234, 0),
    ),
    "arena_hello": (ArenaHello(DECODE_WORKER, 11, 4_321), ArenaHello(DECODE_WORKER, 0, 1)),
    "arena_welcome": (
        ArenaWelcome(
            HOST, 1_234, "arena-1234", 64, LAYOUT, 30_000, {"tcp": "127.0.0.1:9", "nats": HOST}
        ),
        ArenaWelcome(HOST, 0, "arena-0", 2, LAYOUT, 100),
    ),
}
