"""Who may write which block: random interleavings of all verbs, late and repeated ones too."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from slipstream.services.kv_manager.pulls import PullBook
from slipstream.services.kv_manager.records import Holder
from slipstream.shared.config import Eviction
from slipstream.shared.ids import HostId, LeaseId, RequestId, WorkerId
from slipstream.shared.messages.kv import (
    Adopt,
    BlockOrigin,
    Blocks,
    Commit,
    Grant,
    KvRefused,
    Lease,
    Pull,
    Release,
)
from slipstream.shared.messages.packed import PackedInts

from .lease_messages import A, B, make_book, release, renew


class Interleavings(RuleBasedStateMachine):
    """Two workers in two epochs say whatever they like, late, twice and out of turn."""

    lease_ids = Bundle("lease_ids")
    blocks = Bundle("blocks")
    holders = st.sampled_from([(WorkerId(w), e) for w in "ab" for e in (1, 2)])
    attempts = st.sampled_from([RequestId(each) for each in "rstu"])

    @initialize(eviction=st.sampled_from(["lru", "filtered"]))
    def begin(self, eviction: Eviction) -> None:
        """A pool that is always short."""
        self.now = 0.0
        self.book = make_book(6, eviction=eviction)
        for holder in (A, B):
            self.book.worker_gone(*holder)
        self.newest: dict[int, int] = {}
        self.known_leases: set[LeaseId] = set()
        self.quarantined: dict[LeaseId, Holder] = {}
        self.pulls = PullBook(self.book.table, self.book.pool)
        self.pulling: list[tuple[LeaseId, list[int]]] = []

    def hand_out(self, blocks: Blocks) -> None:
        for block_id, generation in zip(blocks.block_ids, blocks.generations, strict=True):
            assert generation > self.newest.get(block_id, 0), "a generation is handed out once"
            self.newest[block_id] = generation

    def leave_quarantine(self, holder_id: WorkerId, lease_id: LeaseId | None) -> None:
        """Only what this proof covers may have left."""
        left = self.quarantined.keys() - self.book.table.quarantines.keys()
        assert left <= {lease_id}
        assert all(self.quarantined[each][0] == holder_id for each in left)

    @rule(holder=holders)
    def join(self, holder: Holder) -> None:
        self.book.worker_joined(*holder)

    @rule(holder=holders)
    def end(self, holder: Holder) -> None:
        self.book.worker_gone(*holder)
        left = self.quarantined.keys() - self.book.table.quarantines.keys()

        assert all(self.quarantined[each] == holder for each in left)
        assert not [each for each in self.book.table.leases.values() if each.holder == holder]

    @rule(target=lease_ids, holder=holders, request=attempts, num_blocks=st.integers(0, 7))
    def lease(self, holder: Holder, request: RequestId, num_blocks: int) -> object:
        message = Lease(
            request_id=request,
            attempt=1,
            worker_id=holder[0],
            worker_epoch=holder[1],
            num_blocks=num_blocks,
            layout="",
        )
        answer = self.book.lease(message, self.now)
        if isinstance(answer, KvRefused):
            return multiple()
        if answer.lease_id not in self.known_leases:
            self.known_leases.add(answer.lease_id)
            self.hand_out(answer.blocks)
        return answer.lease_id

    @rule(lease_id=lease_ids, holder=holders, num_tokens=st.integers(0, 30))
    def commit(self, lease_id: LeaseId, holder: Holder, num_tokens: int) -> None:
        message = Commit(
            request_id=RequestId("r"),
            attempt=1,
            lease_id=lease_id,
            worker_id=holder[0],
            num_tokens=num_tokens,
        )
        self.book.commit(message, self.now)

    @rule(lease_id=lease_ids, giver=holders, taker=holders)
    def adopt(self, lease_id: LeaseId, giver: Holder, taker: Holder) -> None:
        message = Adopt(
            request_id=RequestId("r"),
            attempt=1,
            lease_id=lease_id,
            from_worker_id=giver[0],
            to_worker_id=taker[0],
            to_worker_epoch=taker[1],
        )
        known = self.book.table.leases.get(lease_id)
        was_over = known is None or known.expires_at <= self.now
        answer = self.book.adopt(message, self.now)

        assert isinstance(answer, KvRefused) or not was_over

    @rule(target=blocks, holder=holders, num_blocks=st.integers(-1, 7))
    def grant(self, holder: Holder, num_blocks: int) -> Blocks:
        message = Grant(worker_id=holder[0], worker_epoch=holder[1], num_blocks=num_blocks)
        granted = self.book.grant(message, self.now).blocks
        self.hand_out(granted)
        return granted

    @rule(holder=holders, returned=blocks)
    def return_grant(self, holder: Holder, returned: Blocks) -> None:
        message = Grant(
            worker_id=holder[0], worker_epoch=holder[1], num_blocks=0, returned=returned
        )
        self.book.grant(message, self.now)

    @rule(lease_id=lease_ids, holder=holders, grown=blocks)
    def renew(self, lease_id: LeaseId, holder: Holder, grown: Blocks) -> None:
        renew(self.book, lease_id, holder, grown, self.now)

    @rule(lease_id=lease_ids, holder=holders, grown=blocks)
    def release(self, lease_id: LeaseId, holder: Holder, grown: Blocks) -> None:
        release(self.book, lease_id, holder, grown)
        self.leave_quarantine(holder[0], lease_id)

    @rule(holder=holders, request=attempts)
    def release_attempt(self, holder: Holder, request: RequestId) -> None:
        release(self.book, None, holder, request=request)
        self.leave_quarantine(holder[0], None)

    @rule(request=attempts)
    def tombstone(self, request: RequestId) -> None:
        message = Release(request_id=request, attempt=1, is_tombstone=True)
        self.book.release(message, self.now)

    @rule(lease_id=lease_ids, holder=holders, first=st.integers(0, 4), num_blocks=st.integers(0, 4))
    def begin_pull(self, lease_id: LeaseId, holder: Holder, first: int, num_blocks: int) -> None:
        """A transfer from another host begins to write into a lease's blocks."""
        message = Pull(
            request_id=RequestId("r"),
            attempt=1,
            lease_id=lease_id,
            worker_id=holder[0],
            origin=BlockOrigin(
                host_id=HostId("far"),
                arena_epoch=1,
                lease_id=LeaseId("f"),
                worker_id=A[0],
                layout="",
            ),
            source=Blocks(PackedInts([1] * num_blocks), PackedInts([1] * num_blocks)),
            first_block_idx=first,
        )
        block_ids = self.pulls.begin(message)
        if not isinstance(block_ids, KvRefused):
            self.pulling.append((lease_id, block_ids))

    @precondition(lambda self: bool(self.pulling))
    @rule(pick=st.integers(0, 9))
    def end_pull(self, pick: int) -> None:
        lease_id, _ = self.pulling.pop(pick % len(self.pulling))
        self.pulls.end(lease_id)
        assert self.quarantined.keys() - self.book.table.quarantines.keys() <= {lease_id}

    @invariant()
    def what_is_being_pulled_is_nobody_elses(self) -> None:
        """Whatever became of the lease: until the transfer has ended, its blocks stay its own."""
        for lease_id, block_ids in getattr(self, "pulling", []):
            table = self.book.table
            held = table.leases.get(lease_id)
            own = held.writable_ids if held is not None else []
            quarantine = table.quarantines.get(lease_id)
            assert set(block_ids) <= {*own, *(quarantine.block_ids if quarantine else [])}

    @rule(seconds=st.sampled_from([1.0, 20.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.book.sweep(self.now)
        self.leave_quarantine(WorkerId(""), None)

        assert all(each.expires_at > self.now for each in self.book.table.leases.values())

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "book"):
            return
        book = self.book
        self.quarantined = {each: it.holder for each, it in book.table.quarantines.items()}
        writable = [
            *(b for each in book.table.leases.values() for b in each.writable_ids),
            *(b for each in book.grants._by_holder.values() for b in each),
            *(b for each in book.table.quarantines.values() for b in each.block_ids),
        ]

        assert [] == book.check_integrity()
        assert len(writable) == len(set(writable)), "a block with two writers"
        holders = {each.holder for each in book.table.leases.values()}
        holders |= {each for each, granted in book.grants._by_holder.items() if granted}
        holders |= {it.holder for it in book.table.quarantines.values() if not it.is_proved}
        assert holders <= book._present, "held by a process that can't prove its end"


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
