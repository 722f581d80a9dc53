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
    Blocks,
    Commit,
    Committed,
    Fork,
    Forked,
    Grant,
    Granted,
    KvRefused,
    Lease,
    Leased,
    LeaseRenewal,
    LeaseSummary,
    Match,
    Matched,
    Pull,
    Pulled,
    Reclaim,
    Reclaimed,
    Release,
    Released,
    Renew,
    Renewed,
)

from .parts import (
    ATTEMPT,
    BLOCKS,
    DECODE_WORKER,
    ENVELOPE,
    FINGERPRINT,
    HOST,
    LAYOUT,
    LEASE,
    NUMERICS,
    OTHER_BLOCKS,
    OTHER_HOST,
    OTHER_LEASE,
    OTHER_REQUEST,
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
        Match(TOKENS, LAYOUT, "salt", "poet", FINGERPRINT, NUMERICS),
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
        ),
        Lease(**ATTEMPT, worker_id=PREFILL_WORKER, worker_epoch=9, num_blocks=3, layout=LAYOUT),
    ),
    "leased": (Leased(LEASE, BLOCKS, 30_000, 32, 16), Leased(LEASE, Blocks(), 30_000)),
    "commit": (
        Commit(
            **ENVELOPE,
            lease_id=LEASE,
            worker_id=PREFILL_WORKER,
            num_tokens=32,
            token_ids=TOKENS,
            grown=BLOCKS,
        ),
        Commit(**ATTEMPT, lease_id=LEASE, worker_id=PREFILL_WORKER, num_tokens=32),
    ),
    "committed": (Committed(2), Committed(0)),
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
        Renew(DECODE_WORKER, 11, [LeaseRenewal(LEASE, BLOCKS, 1), LeaseRenewal(OTHER_LEASE)]),
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
    "grant": (Grant(DECODE_WORKER, 11, 16, BLOCKS), Grant(DECODE_WORKER, 11, 16)),
    "granted": (Granted(BLOCKS, 40), Granted(Blocks(), 0)),
    "reclaim": (Reclaim(DECODE_WORKER, 4, REQUEST, 2), Reclaim(DECODE_WORKER, 4)),
    "reclaimed": (Reclaimed(DECODE_WORKER, BLOCKS), Reclaimed(DECODE_WORKER)),
    "fork": (
        Fork(
            **ENVELOPE,
            lease_id=LEASE,
            worker_id=DECODE_WORKER,
            worker_epoch=11,
            to_request_id=OTHER_REQUEST,
            to_attempt=1,
            num_tokens=33,
            num_blocks=2,
        ),
        Fork(
            **ATTEMPT,
            lease_id=LEASE,
            worker_id=DECODE_WORKER,
            worker_epoch=11,
            to_request_id=OTHER_REQUEST,
            to_attempt=1,
            num_tokens=33,
        ),
    ),
    "forked": (Forked(OTHER_LEASE, BLOCKS, 2, 30_000), Forked(OTHER_LEASE, Blocks(), 0, 30_000)),
    "pull": (
        Pull(
            **ENVELOPE,
            lease_id=LEASE,
            source_host_id=OTHER_HOST,
            source_lease_id=OTHER_LEASE,
            source=OTHER_BLOCKS,
            first_block_idx=2,
            layout=LAYOUT,
            plane="shared_memory",
        ),
        Pull(
            **ATTEMPT,
            lease_id=LEASE,
            source_host_id=OTHER_HOST,
            source_lease_id=OTHER_LEASE,
            source=OTHER_BLOCKS,
            first_block_idx=0,
            layout=LAYOUT,
        ),
    ),
    "pulled": (Pulled(3, 2**33), Pulled(0, 0)),
    "audit": (Audit(with_leases=True), Audit()),
    "audited": (
        Audited(
            **BOOKS,
            num_late_messages=3,
            oldest_lease_ms=1_500,
            problems=["block 7 is counted twice"],
            leases=[LeaseSummary(LEASE, REQUEST, 2, DECODE_WORKER, 3, 2, 28_500)],
            num_indexed=13,
        ),
        Audited(**BOOKS),
    ),
    "arena_hello": (ArenaHello(DECODE_WORKER, 11, 4_321), ArenaHello(DECODE_WORKER, 0, 1)),
    "arena_welcome": (
        ArenaWelcome(HOST, 1_234, "arena-1234", 64, LAYOUT, 30_000),
        ArenaWelcome(HOST, 0, "arena-0", 2, LAYOUT, 100),
    ),
}
