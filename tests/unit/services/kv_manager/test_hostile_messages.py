"""
The manager's verbs on messages that no worker of ours would send.

Every number may be any that the wire can hold, and everything comes late, twice and in other
people's names, with wrong epochs and generations. The books add up after each message.
"""

import math
import os
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from slipstream.services.kv_manager.message_checks import check_message
from slipstream.services.kv_manager.pool import BlockState
from slipstream.services.kv_manager.pulls import PullBook
from slipstream.services.kv_manager.slices import finish
from slipstream.services.kv_manager.verbs import KvVerbs
from slipstream.shared.bus.subjects import KV_VERBS
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.ids import HostId, LeaseId, RequestId, WorkerId
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.common import Message
from slipstream.shared.messages.kv import (
    Adopt,
    Adopted,
    Audit,
    BlockOrigin,
    Blocks,
    Commit,
    Committed,
    Grant,
    Granted,
    KvRequest,
    Lease,
    Leased,
    LeaseRenewal,
    Match,
    Pull,
    Release,
    Renew,
)
from slipstream.shared.messages.packed import PackedInts

from .lease_messages import make_book

NUM_BLOCKS = 7
LAYOUT = "layout"
NUM_EXAMPLES = int(os.environ.get("SLIPSTREAM_FUZZ_EXAMPLES", "20"))
EDGES = [0, 1, -1, 2, 3, 5, 7, 8, 2**31, -(2**63), 2**63, 2**64 - 1]

# Mostly such as do something, now and then any that 64 bits hold.
numbers = st.integers(0, 8) | st.sampled_from(EDGES)
uint32s = st.integers(0, NUM_BLOCKS + 1) | st.sampled_from([2**31, 2**32 - 1])
tokens = st.lists(st.integers(0, 1), max_size=20).map(PackedInts)
times = st.floats(0, 50) | st.sampled_from([math.inf, -math.inf, math.nan, -1e308])
salts = st.sampled_from(["", "", "x"])
layouts = st.sampled_from([LAYOUT, LAYOUT, LAYOUT, "other"])
workers = st.sampled_from([WorkerId("a"), WorkerId("b")])
epochs = st.sampled_from([1, 1, 2])
requests = st.sampled_from([RequestId(each) for each in "rst"])
attempts = st.sampled_from([1, 1, 2, -1, 2**63])
picks = st.integers(0, 30)


class Hostile(RuleBasedStateMachine):
    """Whoever may publish to the manager, with what others were told in hand."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.book = make_book(NUM_BLOCKS)
        self.verbs = KvVerbs(self.book, LAYOUT, HostId("h"), 1)
        self.pulls = PullBook(self.book.table, self.book.pool)
        self.pulling: list[LeaseId] = []
        self.lease_ids = [LeaseId(""), LeaseId("nobody's")]
        self.told = [Blocks()]  # blocks that somebody has been told of

    def say(self, message: Message) -> Any:  # Any: a reply union
        """Send a message over the wire, and take what comes back over it too."""
        decoder = decoder_of(KvRequest)
        came = decoder.decode(encode(message))
        try:
            check_message(came)
        except InvalidRequestError:
            return None
        answer = self.verbs.answer(came, self.now)
        _, reply = KV_VERBS[type(came)]
        told = decoder_of(reply).decode(encode(answer))
        match told:
            case Leased() | Adopted():
                self.lease_ids.append(told.lease_id)
                self.told.append(told.blocks)
            case Granted() | Committed():
                self.told.append(told.blocks)
        return told

    def lease_id(self, pick: int) -> LeaseId:
        return self.lease_ids[-1 - pick % len(self.lease_ids)]

    def blocks(self, pick: int, odd: list[int]) -> Blocks:
        """Blocks that were told of, ones made up, or lists of two lengths."""
        told = self.told[-1 - pick % len(self.told)]
        if not odd:
            return told
        return Blocks(PackedInts(odd), PackedInts([*told.generations, *odd][: len(odd) + pick % 2]))

    @rule(worker=workers, epoch=epochs)
    def join(self, worker: WorkerId, epoch: int) -> None:
        self.book.worker_joined(worker, epoch)

    @rule(worker=workers, epoch=epochs)
    def end(self, worker: WorkerId, epoch: int) -> None:
        self.book.worker_gone(worker, epoch)

    @rule(
        request=requests,
        attempt=attempts,
        worker=workers,
        epoch=epochs,
        num_blocks=numbers,
        num_first=st.none() | numbers,
        num_spare=st.just(0) | numbers,
        token_ids=tokens,
        layout=layouts,
        salt=salts,
        priority=numbers,
        elapsed_ms=times,
        is_patient=st.booleans(),
    )
    def lease(
        self,
        request: RequestId,
        attempt: int,
        worker: WorkerId,
        epoch: int,
        num_blocks: int,
        num_first: int | None,
        num_spare: int,
        token_ids: PackedInts,
        layout: str,
        salt: str,
        priority: int,
        elapsed_ms: float,
        is_patient: bool,
    ) -> None:
        self.say(
            Lease(
                request_id=request,
                attempt=attempt,
                worker_id=worker,
                worker_epoch=epoch,
                num_blocks=num_blocks,
                layout=layout,
                token_ids=token_ids,
                cache_salt=salt,
                num_first_blocks=num_first,
                is_patient=is_patient,
                priority=priority,
                elapsed_ms=elapsed_ms,
                num_spare_blocks=num_spare,
            )
        )

    @rule(token_ids=tokens, layout=layouts, salt=salts, wait_ms=numbers)
    def match(self, token_ids: PackedInts, layout: str, salt: str, wait_ms: int) -> None:
        self.say(Match(token_ids, layout, salt, wait_ms=wait_ms))

    @rule(
        pick=picks,
        worker=workers,
        num_tokens=st.integers(0, 30) | numbers,
        token_ids=tokens,
        grown=picks,
        odd=st.lists(uint32s, max_size=3),
        num_known=numbers,
        num_wanted=numbers,
    )
    def commit(
        self,
        pick: int,
        worker: WorkerId,
        num_tokens: int,
        token_ids: PackedInts,
        grown: int,
        odd: list[int],
        num_known: int,
        num_wanted: int,
    ) -> None:
        self.say(
            Commit(
                request_id=RequestId("r"),
                attempt=1,
                lease_id=self.lease_id(pick),
                worker_id=worker,
                num_tokens=num_tokens,
                token_ids=token_ids,
                grown=self.blocks(grown, odd),
                num_known_blocks=num_known,
                num_wanted_blocks=num_wanted,
            )
        )

    @rule(pick=picks, giver=workers, taker=workers, epoch=epochs)
    def adopt(self, pick: int, giver: WorkerId, taker: WorkerId, epoch: int) -> None:
        self.say(
            Adopt(
                request_id=RequestId("r"),
                attempt=1,
                lease_id=self.lease_id(pick),
                from_worker_id=giver,
                to_worker_id=taker,
                to_worker_epoch=epoch,
            )
        )

    @rule(
        chosen=st.lists(picks, max_size=3),
        worker=workers,
        epoch=epochs,
        grown=picks,
        odd=st.lists(uint32s, max_size=3),
    )
    def renew(
        self, chosen: list[int], worker: WorkerId, epoch: int, grown: int, odd: list[int]
    ) -> None:
        """The same blocks may be said to have grown into each of them."""
        blocks = self.blocks(grown, odd)
        renewals = [LeaseRenewal(self.lease_id(pick), blocks) for pick in chosen]
        self.say(Renew(worker_id=worker, worker_epoch=epoch, renewals=renewals))

    @rule(
        pick=st.none() | picks,
        request=requests,
        attempt=attempts,
        worker=st.none() | workers,
        grown=picks,
        odd=st.lists(uint32s, max_size=3),
        is_tombstone=st.booleans(),
    )
    def release(
        self,
        pick: int | None,
        request: RequestId,
        attempt: int,
        worker: WorkerId | None,
        grown: int,
        odd: list[int],
        is_tombstone: bool,
    ) -> None:
        self.say(
            Release(
                request_id=request,
                attempt=attempt,
                lease_id=None if pick is None else self.lease_id(pick),
                worker_id=worker,
                grown=self.blocks(grown, odd),
                is_tombstone=is_tombstone,
            )
        )

    @rule(
        worker=workers,
        epoch=epochs,
        num_blocks=numbers,
        returned=picks,
        odd=st.lists(uint32s, max_size=3),
        short=st.none() | picks,
        number=st.just(0) | numbers,
    )
    def grant(
        self,
        worker: WorkerId,
        epoch: int,
        num_blocks: int,
        returned: int,
        odd: list[int],
        short: int | None,
        number: int,
    ) -> None:
        self.say(
            Grant(
                worker_id=worker,
                worker_epoch=epoch,
                num_blocks=num_blocks,
                returned=self.blocks(returned, odd),
                short_lease_id=None if short is None else self.lease_id(short),
                number=number,
            )
        )

    @rule(
        pick=picks, worker=workers, first=numbers, source=picks, odd=st.lists(uint32s, max_size=3)
    )
    def pull(self, pick: int, worker: WorkerId, first: int, source: int, odd: list[int]) -> None:
        origin = BlockOrigin(
            host_id=HostId("far"),
            arena_epoch=1,
            lease_id=LeaseId("f"),
            worker_id=WorkerId("a"),
            layout=LAYOUT,
        )
        message = Pull(
            request_id=RequestId("r"),
            attempt=1,
            lease_id=self.lease_id(pick),
            worker_id=worker,
            origin=origin,
            source=self.blocks(source, odd),
            first_block_idx=first,
        )
        try:
            check_message(message)
        except InvalidRequestError:
            return
        if isinstance(self.pulls.begin(message), list):
            self.pulling.append(message.lease_id)

    @precondition(lambda self: bool(self.pulling))
    @rule(pick=picks)
    def end_pull(self, pick: int) -> None:
        self.pulls.end(self.pulling.pop(pick % len(self.pulling)))

    @rule(seconds=st.sampled_from([0.5, 20.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.book.sweep(self.now)

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "book"):
            return
        assert [] == self.book.check_integrity()
        audited = finish(self.verbs.audit(Audit(with_leases=True), self.now))
        encode(audited)
        assert [] == audited.problems

    def teardown(self) -> None:
        """When everybody has gone, and every transfer has ended, all blocks are home."""
        if not hasattr(self, "book"):
            return
        for lease_id in self.pulling:
            self.pulls.end(lease_id)
        for worker in ("a", "b"):
            for epoch in (1, 2):
                self.book.worker_gone(WorkerId(worker), epoch)
        self.book.sweep(self.now + 1000)
        counts = self.book.pool.counts()

        assert NUM_BLOCKS == counts[BlockState.FREE] + counts[BlockState.CACHED]
        assert 0 == self.book.pool.num_reserved
        assert [] == [*self.book.table.leases, *self.book.table.quarantines]
        assert [] == self.book.check_integrity()


TestHostile = Hostile.TestCase
# To make a failing example shorter takes minutes: it is printed as it was found.
TestHostile.settings = settings(
    max_examples=NUM_EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
