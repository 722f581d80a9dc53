"""
Who may read which block: random interleavings of sequences that begin alike.

The machine plays workers that write into an arena and tell the truth, though late or in part. What
a lease shares must hold the very tokens asked for, and nobody writes what somebody reads.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from slipstream.services.kv_manager.granted import FEW
from slipstream.services.kv_manager.pool import BlockState
from slipstream.services.kv_manager.records import Holder
from slipstream.shared.config import Eviction
from slipstream.shared.ids import LeaseId, RequestId, WorkerId
from slipstream.shared.messages.kv import (
    Adopt,
    Adopted,
    Blocks,
    Committed,
    Grant,
    Leased,
    Match,
    Matched,
)
from slipstream.shared.messages.packed import PackedInts

from .lease_messages import BLOCK_SIZE as SIZE
from .lease_messages import A, B, commit, lease, make_book, reason, release, renew

NUM_BLOCKS = 9
MAX_CHAIN = 6
Content = tuple[str, tuple[int, ...]]  # the salt, and the tokens up to the block's end
GARBAGE: Content = ("", ())
some_are_living = precondition(lambda self: bool(self.living))


@dataclass(eq=False)
class Sequence:
    """A sequence as its worker knows it."""

    request: str
    holder: Holder
    salt: str
    tokens: tuple[int, ...]
    lease_id: LeaseId
    table: list[tuple[int, int]]
    num_computed: int  # blocks; the next ones may be half written
    num_committed: int
    grown: list[tuple[int, int]] = field(default_factory=list)
    is_lost: bool = False

    def content(self, idx: int) -> Content:
        return self.salt, self.tokens[: (idx + 1) * SIZE]


class PrefixInterleavings(RuleBasedStateMachine):
    """Two workers, few blocks, and prompts of which most begin with the same ones."""

    workers = st.sampled_from([0, 1])
    picks = st.integers(0, 20)

    @initialize(
        hash_bits=st.sampled_from([0, 2, 128]), eviction=st.sampled_from(["lru", "filtered"])
    )
    def begin(self, hash_bits: int, eviction: Eviction) -> None:
        """A pool that is always short, and hashes of which some collide."""
        self.now = 0.0
        self.book = make_book(NUM_BLOCKS, hash_bits, eviction=eviction)
        self.holders: list[Holder] = [A, B]
        self.granted: dict[Holder, list[tuple[int, int]]] = {A: [], B: []}
        self.content: dict[int, Content] = {}
        self.living: list[Sequence] = []
        self.num_requests = 0
        self.copied: dict[LeaseId, int] = {}

    def picked(self, pick: int) -> Sequence:
        return self.living[pick % len(self.living)]

    def is_held(self, sequence: Sequence) -> bool:
        return sequence.lease_id in self.book.table.leases

    @rule(
        worker=workers,
        chain=st.lists(st.integers(0, 1), min_size=1, max_size=MAX_CHAIN),
        num_more=st.integers(0, SIZE - 1),
        salt=st.sampled_from(["", "", "x"]),
        num_steps=st.integers(0, MAX_CHAIN),
        num_first=st.sampled_from([None, 0, 1, 2]),
        is_patient=st.booleans(),
    )
    def lease(
        self,
        worker: int,
        chain: list[int],
        num_more: int,
        salt: str,
        num_steps: int,
        num_first: int | None,
        is_patient: bool,
    ) -> None:
        """Lease blocks for a prompt, and compute and commit some of it."""
        tokens = (*(token for token in chain for _ in range(SIZE)), *[1] * num_more)
        num_blocks = -(-len(tokens) // SIZE)
        self.num_requests += 1
        request, holder = f"r{self.num_requests}", self.holders[worker]
        num_available = self.book.pool.num_unreserved
        matched = self.book.match(Match(PackedInts(tokens), "", salt), self.now)
        answer = lease(
            self.book,
            num_blocks,
            holder,
            request,
            self.now,
            tokens,
            num_first,
            is_patient=is_patient,
            cache_salt=salt,
        )
        if reason(answer) == "pending":
            assert is_patient
            self.check_pending(salt, tokens, matched)
            return
        if not isinstance(answer, Leased):
            assert "no_blocks" == reason(answer)
            assert num_blocks > num_available, "cached blocks are there to be taken"
            return
        table = list(zip(answer.blocks.block_ids, answer.blocks.generations, strict=True))
        num_cached = answer.num_cached_tokens // SIZE
        sequence = Sequence(
            request, holder, salt, tokens, answer.lease_id, table, num_cached, num_cached
        )
        num_copied = self.check_copy(sequence, answer)
        assert answer.num_cached_tokens + num_copied <= matched.num_cached_tokens < len(tokens)
        assert num_blocks == len(table) + answer.num_reserved_blocks
        for idx in range(num_cached):
            assert sequence.content(idx) == self.content[table[idx][0]], "another's block"
        for block_id, _ in table[num_cached:]:
            self.content[block_id] = GARBAGE
        self.living.append(sequence)
        for _ in range(num_steps):
            self.compute_block(sequence)
        self.tell(sequence, sequence.num_committed)

    def check_pending(self, salt: str, tokens: tuple[int, ...], matched: Matched) -> None:
        """Somebody has leased the tokens that the next block takes, and lives."""
        end = matched.num_cached_tokens // SIZE * SIZE + SIZE
        assert matched.num_pending_tokens >= end
        packed = PackedInts(tokens[:end]).to_bytes()
        assert any(
            each.packed_tokens.startswith(packed) and each.num_committed * SIZE < end
            for each in self.book.table.leases.values()
        ), f"nobody computes {tokens[:end]} of {salt!r}"

    def check_copy(self, sequence: Sequence, answer: Leased) -> int:
        """What may be copied are the tokens asked for; return how many."""
        copy = answer.copy
        if copy is None:
            return 0
        end = answer.num_cached_tokens + copy.num_tokens
        salt, tokens = self.content[copy.block_id]
        assert (sequence.salt, sequence.tokens[:end]) == (salt, tokens[:end])
        assert self.book.pool.is_current(copy.block_id, copy.generation)
        self.copied[sequence.lease_id] = copy.block_id
        return copy.num_tokens

    @invariant()
    def what_is_copied_stays(self) -> None:
        """A block that a lease may be copying from is nobody's to write."""
        for lease_id, block_id in self.copied.items():
            held = self.book.table.leases.get(lease_id)
            if held is not None and held.copied is not None:
                assert self.book.pool.state(block_id) is BlockState.COMMITTED

    @some_are_living
    @rule(pick=picks)
    def compute(self, pick: int) -> None:
        """Write a block, also when the lease is over and the worker doesn't know it yet."""
        self.compute_block(self.picked(pick))

    def compute_block(self, sequence: Sequence) -> None:
        idx = sequence.num_computed
        if sequence.is_lost or idx >= len(sequence.table):
            return
        # Generated tokens fill what the prompt left.
        sequence.tokens += (7,) * ((idx + 1) * SIZE - len(sequence.tokens))
        self.write(sequence, idx, sequence.content(idx))
        sequence.num_computed += 1

    @some_are_living
    @rule(pick=picks)
    def begin_to_compute(self, pick: int) -> None:
        """A step's rows, or rejected drafts, in a block that isn't complete."""
        sequence = self.picked(pick)
        if sequence.num_computed < len(sequence.table):
            self.write(sequence, sequence.num_computed, GARBAGE)

    def write(self, sequence: Sequence, idx: int, content: Content) -> None:
        block_id, _ = sequence.table[idx]
        state = self.book.pool.state(block_id)
        owned = BlockState.LEASED if self.is_held(sequence) else BlockState.QUARANTINED
        assert state in (owned, BlockState.GRANTED), f"a write into a {state.value} block"
        self.content[block_id] = content

    @some_are_living
    @rule(pick=picks, num_back=st.integers(0, 3), is_gap=st.booleans())
    def commit(self, pick: int, num_back: int, is_gap: bool) -> None:
        """Tell all whole blocks, some of them twice, or leave one out."""
        sequence = self.picked(pick)
        first = sequence.num_committed + (1 if is_gap else -num_back)
        self.tell(sequence, min(max(first, 0), sequence.num_computed))

    def tell(self, sequence: Sequence, first: int) -> None:
        end = sequence.num_computed
        told = sequence.tokens[first * SIZE : end * SIZE]
        grown = _blocks(sequence.grown)
        num_known = len(sequence.table)
        answer = commit(
            self.book,
            sequence.lease_id,
            end * SIZE,
            told,
            sequence.holder,
            grown,
            num_known,
            end + 2,
            self.now,
        )
        if isinstance(answer, Committed):
            assert end == answer.num_blocks, "what grew in is committed too"
            sequence.num_committed = end
            new = zip(answer.blocks.block_ids, answer.blocks.generations, strict=True)
            for block_id, generation in new:
                self.content[block_id] = GARBAGE
                sequence.table.append((block_id, generation))

    @rule(worker=workers, num_blocks=st.integers(1, 4))
    def grant(self, worker: int, num_blocks: int) -> None:
        holder = self.holders[worker]
        message = Grant(worker_id=holder[0], worker_epoch=holder[1], num_blocks=num_blocks)
        most = max(0, -(-self.book.pool.num_unreserved // 4))
        most = min(most, FEW) if self.book.pressure.is_on(self.now) else most
        granted = self.book.grant(message, self.now).blocks
        assert min(num_blocks, most) == len(granted.block_ids)
        self.granted[holder] += zip(granted.block_ids, granted.generations, strict=True)

    @rule(worker=workers)
    def return_grant(self, worker: int) -> None:
        holder = self.holders[worker]
        returned, self.granted[holder] = self.granted[holder], []
        message = Grant(
            worker_id=holder[0], worker_epoch=holder[1], num_blocks=0, returned=_blocks(returned)
        )
        self.book.grant(message, self.now)

    @some_are_living
    @rule(pick=picks)
    def grow(self, pick: int) -> None:
        """Take a granted block; the manager hears of it later."""
        sequence = self.picked(pick)
        if self.granted[sequence.holder]:
            block = self.granted[sequence.holder].pop(0)
            sequence.table.append(block)
            sequence.grown.append(block)
            self.content[block[0]] = GARBAGE

    @some_are_living
    @rule(pick=picks)
    def renew(self, pick: int) -> None:
        sequence = self.picked(pick)
        if sequence.is_lost:
            return
        grown = _blocks(sequence.grown)
        if renew(self.book, sequence.lease_id, sequence.holder, grown, self.now):
            sequence.is_lost = True
        else:
            sequence.grown.clear()

    @some_are_living
    @rule(pick=picks, worker=workers)
    def adopt(self, pick: int, worker: int) -> None:
        """Hand a sequence over, as a prefill worker does, which never grows one."""
        sequence = self.picked(pick)
        if sequence.grown:
            return
        to = self.holders[worker]
        message = Adopt(
            request_id=RequestId(sequence.request),
            attempt=1,
            lease_id=sequence.lease_id,
            from_worker_id=sequence.holder[0],
            to_worker_id=to[0],
            to_worker_epoch=to[1],
        )
        if isinstance(self.book.adopt(message, self.now), Adopted):
            sequence.holder = to

    @some_are_living
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        sequence = self.living.pop(pick % len(self.living))
        grown = _blocks(sequence.grown)
        release(self.book, sequence.lease_id, sequence.holder, grown, sequence.request)

    @rule(worker=workers)
    def die(self, worker: int) -> None:
        """End a process, and start it again."""
        holder = self.holders[worker]
        self.living = [each for each in self.living if each.holder != holder]
        del self.granted[holder]
        self.book.worker_gone(*holder)
        self.holders[worker] = (WorkerId(holder[0]), holder[1] + 1)
        self.granted[self.holders[worker]] = []
        self.book.worker_joined(*self.holders[worker])

    @rule(seconds=st.sampled_from([1.0, 20.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.book.sweep(self.now)

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "book"):
            assert [] == self.book.check_integrity()
            assert len(self.book.prefixes.index) <= NUM_BLOCKS

    @invariant()
    def what_is_read_stays(self) -> None:
        for sequence in getattr(self, "living", []):
            if not self.is_held(sequence):
                continue
            for idx, (block_id, generation) in enumerate(sequence.table):
                assert generation == self.book.pool.generations[block_id]
                if idx < sequence.num_computed:
                    assert sequence.content(idx) == self.content[block_id]


def _blocks(pairs: list[tuple[int, int]]) -> Blocks:
    return Blocks(PackedInts(each for each, _ in pairs), PackedInts(each for _, each in pairs))


TestPrefixInterleavings = PrefixInterleavings.TestCase
TestPrefixInterleavings.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
