"""Verbs of a host's KV manager: blocks are held by leases of (request, attempt)."""

from typing import Literal

import msgspec

from slipstream.shared.ids import HostId, LeaseId, RequestId, WorkerId
from slipstream.shared.messages.common import AttemptMessage, Message
from slipstream.shared.messages.packed import PackedInts

RefusalReason = Literal[
    "no_blocks",  # not enough free blocks now
    "too_large",  # more than the pool can ever give
    "cancelled",  # a tombstone stands for (request, attempt)
    "unknown_lease",
    "not_holder",  # the lease belongs to somebody else by now
    "expired",
    "incompatible",  # another model, format or layout
    "stale_epoch",
    "unsupported",
    "not_writable",  # a transfer can't fill blocks that others may read
    "transfer_failed",
    "no_common_plane",  # two hosts that move KV by different means
    "pending",  # somebody is computing a prefix of these tokens: `match` waits for it
]


class KvRefused(Message, frozen=True, tag="kv_refused"):
    """The manager did nothing; the reason says whether asking again can help."""

    reason: RefusalReason
    message: str = ""
    num_free_blocks: int = 0


class Blocks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Block ids with the generation in which they were handed out, position by position."""

    block_ids: PackedInts = PackedInts()
    generations: PackedInts = PackedInts()


class BlockCopy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block of somebody else's whose first tokens are wanted too: to be copied, never shared."""

    block_id: int
    generation: int
    num_tokens: int


class Match(Message, frozen=True, tag="match"):
    """
    How long a prefix of these tokens is held already? (a hint: nothing is held by asking).

    With `wait_ms` the answer waits so long for a prefix that is being computed to get longer.
    """

    token_ids: PackedInts
    layout: str
    cache_salt: str = ""
    adapter: str = ""
    model_fingerprint: str = ""
    numerics: str = ""
    wait_ms: int = 0


class Matched(Message, frozen=True, tag="matched"):
    """Length of the longest known prefix, and what is being written right now."""

    num_cached_tokens: int
    num_pending_tokens: int = 0


class Lease(AttemptMessage, frozen=True, tag="lease"):
    """
    Hold blocks for an attempt; idempotent per (request, attempt, worker).

    `num_blocks` are promised; of those without cached KV `num_first_blocks` (None: all) are handed
    out at once, the others by the commits as they are needed. The patient are told `pending`
    rather than let compute what another one is computing. Who is refused for want of blocks and
    asks again has its turn before less important ones, once it has waited for a while.
    """

    worker_id: WorkerId
    worker_epoch: int
    num_blocks: int
    layout: str
    token_ids: PackedInts = PackedInts()  # to find a cached prefix
    cache_salt: str = ""
    adapter: str = ""
    model_fingerprint: str = ""
    numerics: str = ""  # KV of another class isn't shared
    num_first_blocks: int | None = None
    is_patient: bool = False
    priority: int = 0
    elapsed_ms: float = 0.0  # since the request arrived: the newest gives way first
    num_spare_blocks: int = 0  # that must be left for others to grow by, or it is refused


class Leased(Message, frozen=True, tag="leased"):
    """
    The blocks in order; the first num_cached_tokens positions hold KV and are read-only.

    With `copy` the first block that isn't cached may begin with a copy of that one's first tokens,
    which stays as it is until the holder's next commit.
    """

    lease_id: LeaseId
    blocks: Blocks
    lease_ms: int
    num_cached_tokens: int = 0
    num_reserved_blocks: int = 0  # promised, to come with the commits
    copy: BlockCopy | None = None


class Commit(AttemptMessage, frozen=True, tag="commit"):
    """
    The first `num_tokens` positions (whole blocks) are written: read-only and shareable now.

    Of the blocks that the lease has been promised, so many are handed out that it has
    `num_wanted_blocks`; the answer names those behind the `num_known_blocks`.
    """

    lease_id: LeaseId
    worker_id: WorkerId
    num_tokens: int
    # The last of these positions, the blocks newly committed among them: what makes them findable.
    token_ids: PackedInts = PackedInts()
    grown: Blocks = Blocks()  # as in a renewal
    num_known_blocks: int = 0
    num_wanted_blocks: int = 0


class Committed(Message, frozen=True, tag="committed"):
    """How many blocks of the lease are committed now, and the blocks behind those known."""

    num_blocks: int
    blocks: Blocks = Blocks()


class Adopt(AttemptMessage, frozen=True, tag="adopt"):
    """Pass the lease and its right to write to the decode worker, in one step."""

    lease_id: LeaseId
    from_worker_id: WorkerId
    to_worker_id: WorkerId
    to_worker_epoch: int


class Adopted(Message, frozen=True, tag="adopted"):
    """The lease as it stands now."""

    lease_id: LeaseId
    blocks: Blocks
    lease_ms: int


class LeaseRenewal(msgspec.Struct, frozen=True, omit_defaults=True):
    """One lease to renew; granted blocks that the sequence took since the last time enter it."""

    lease_id: LeaseId
    grown: Blocks = Blocks()


class Renew(Message, frozen=True, tag="renew"):
    """Renew many leases at once."""

    worker_id: WorkerId
    worker_epoch: int
    renewals: list[LeaseRenewal]


class Renewed(Message, frozen=True, tag="renewed"):
    """Leases not named in `lost` run for another `lease_ms`."""

    lease_ms: int
    lost: list[LeaseId] = []


class Release(AttemptMessage, frozen=True, tag="release"):
    """
    End a lease. From its holder this is also the proof that no step of its writes any more.

    `grown` as in a renewal: blocks taken since. With `is_tombstone` (from the scheduler) any later
    lease of this attempt is refused.
    """

    lease_id: LeaseId | None = None
    worker_id: WorkerId | None = None
    grown: Blocks = Blocks()
    is_tombstone: bool = False


class Released(Message, frozen=True, tag="released"):
    """Idempotent: `was_held` is false for a late or repeated release."""

    was_held: bool = True


class Grant(Message, frozen=True, tag="grant"):
    """
    A decode worker asks for blocks ahead of need; `returned` gives idle ones back.

    `short_lease_id` is the most important of its sequences that can't go on without. A repeat with
    the `number` of the last one is answered like that.
    """

    worker_id: WorkerId
    worker_epoch: int
    num_blocks: int
    returned: Blocks = Blocks()
    short_lease_id: LeaseId | None = None
    number: int = 0  # counts a worker's questions


class Granted(Message, frozen=True, tag="granted"):
    """Possibly fewer blocks than asked for."""

    blocks: Blocks
    num_free_blocks: int


class Reclaim(Message, frozen=True, tag="reclaim"):
    """
    The manager wants blocks back from a decode worker.

    Up to `num_blocks` idle ones of its grant, and those of the sequence that is to give way.
    """

    worker_id: WorkerId
    num_blocks: int
    preempt_request_id: RequestId | None = None
    preempt_attempt: int = 0


class Reclaimed(Message, frozen=True, tag="reclaimed"):
    """
    What the worker gives back at once; a sequence's blocks come with its release.

    `is_unable`: the sequence named doesn't run here (yet), and can't give way.
    """

    worker_id: WorkerId
    blocks: Blocks = Blocks()
    is_unable: bool = False


class BlockOrigin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where blocks of a sequence lie on another host, and how to get them."""

    host_id: HostId
    arena_epoch: int
    lease_id: LeaseId
    worker_id: WorkerId  # who holds the lease
    layout: str
    model_fingerprint: str = ""
    addresses: dict[str, str] = {}  # of the host's manager, by transfer plane


class Pull(AttemptMessage, frozen=True, tag="pull"):
    """
    Copy committed blocks from another host's arena into a lease of this one.

    They fill the lease's table from `first_block_idx` on. A repeat copies again, and harms nothing.
    """

    lease_id: LeaseId
    worker_id: WorkerId
    origin: BlockOrigin
    source: Blocks
    first_block_idx: int


class Pulled(Message, frozen=True, tag="pulled"):
    """How much arrived, with checksums verified."""

    num_blocks: int
    num_bytes: int
    plane: str = ""
    duration_ms: float = 0.0


class Prefilled(AttemptMessage, frozen=True, tag="prefilled"):
    """
    A prefill worker of another host has computed the first `num_tokens` of a sequence.

    A hint to its decode worker, which may copy them while more are computed: what it misses comes
    with the hand-over.
    """

    origin: BlockOrigin
    blocks: Blocks
    num_tokens: int
    token_ids: PackedInts
    cache_salt: str = ""
    adapter: str = ""
    priority: int = 0
    elapsed_ms: float = 0.0


class Audit(Message, frozen=True, tag="audit"):
    """Ask for the books: blocks by state, leases, integrity."""

    with_leases: bool = False


class LeaseSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """One lease in an audit."""

    lease_id: LeaseId
    request_id: RequestId
    attempt: int
    worker_id: WorkerId
    num_blocks: int
    num_committed_blocks: int
    remaining_ms: int


class Audited(Message, frozen=True, tag="audited"):
    """
    The books of a host's pool.

    free + granted + leased + committed + cached + quarantined = num_blocks, or `problems` says why.
    """

    host_id: HostId
    epoch: int
    num_blocks: int
    num_free: int
    num_granted: int
    num_leased: int
    num_committed: int
    num_cached: int
    num_quarantined: int
    num_leases: int
    num_late_messages: int = 0
    oldest_lease_ms: int = 0
    problems: list[str] = []
    leases: list[LeaseSummary] = []
    num_indexed: int = 0  # blocks that the prefix cache can find, in use or cached
    num_reserved: int = 0  # of the free or cached: promised to prompts that are being computed


class Known(Message, frozen=True, tag="known"):
    """Ask which blocks a host's prefix index holds, of a range of block ids at a time."""

    first_block_id: int = 1


class KnownBlocks(Message, frozen=True, tag="known_blocks"):
    """
    Hashes of blocks, 16 bytes each in one piece, as they were after the event of that number.

    The next range begins at `next_block_id`; none does after the last.
    """

    host_id: HostId
    epoch: int
    number: int
    hashes: bytes = b""
    next_block_id: int | None = None


KvRequest = Match | Lease | Commit | Adopt | Renew | Release | Grant | Pull | Audit | Known


class ArenaHello(Message, frozen=True, tag="arena_hello"):
    """First line of a worker on the host's Unix-domain connection: end of file = process gone."""

    worker_id: WorkerId
    worker_epoch: int
    pid: int


class ArenaWelcome(Message, frozen=True, tag="arena_welcome"):
    """Which arena to map."""

    host_id: HostId
    epoch: int
    path: str  # file name in the arena directory
    num_blocks: int
    layout: str
    lease_ms: int
    transfer_addresses: dict[str, str] = {}  # where other hosts get blocks, by transfer plane
