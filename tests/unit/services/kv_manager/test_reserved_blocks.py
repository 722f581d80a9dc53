"""Blocks that are promised and handed out later, copies of part of a block, and who gives way."""

from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.pool import BlockState
from slipstream.services.kv_manager.records import Holder
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.kv import (
    Blocks,
    Committed,
    Grant,
    Lease,
    Leased,
    Reclaim,
    Reclaimed,
    Release,
)

from .lease_messages import BLOCK_SIZE as SIZE
from .lease_messages import A, B, adopt, commit, grant, lease, leased, make_book, reason, release

TOKENS = list(range(1, 5 * SIZE + 1))


def count(book: LeaseBook, state: BlockState) -> int:
    return book.pool.counts()[state]


def test_promised_blocks_come_with_the_commits_the_same_however_often_it_is_asked() -> None:
    book = make_book(8)
    given = lease(book, 5, A, "r", tokens=TOKENS, num_first=2)
    assert isinstance(given, Leased)
    assert (2, 3) == (len(given.blocks.block_ids), given.num_reserved_blocks)
    assert (2, 3, 3) == (count(book, BlockState.LEASED), book.pool.num_reserved, book.num_free)
    answers = [
        commit(book, given.lease_id, SIZE, TOKENS[:SIZE], num_known=2, num_wanted=4)
        for _ in range(2)
    ]
    assert isinstance(answers[0], Committed)
    assert answers[0] == answers[1]
    assert 2 == len(answers[0].blocks.block_ids)
    more = commit(book, given.lease_id, 4 * SIZE, TOKENS[: 4 * SIZE], num_known=4, num_wanted=9)

    assert isinstance(more, Committed)
    assert 1 == len(more.blocks.block_ids), "no more than was promised"
    assert (0, []) == (book.pool.num_reserved, book.check_integrity())


def test_what_is_promised_is_nobody_elses() -> None:
    book = make_book(8)
    given = lease(book, 5, A, "r", num_first=0)
    assert isinstance(given, Leased)

    assert "no_blocks" == reason(lease(book, 4, B, "s"))
    assert 3 == len(grant(book, 8).block_ids)
    assert 0 == len(grant(book, 1).block_ids)
    assert "no_blocks" == reason(lease(book, 1, B, "s"))
    assert release(book, given.lease_id)
    assert 5 == len(leased(book, 5, B, "s").blocks.block_ids)
    assert [] == book.check_integrity()


def test_a_promise_ends_with_the_hand_over() -> None:
    book = make_book(8)
    given = lease(book, 5, A, "r", num_first=2)
    assert isinstance(given, Leased)
    adopt(book, given.lease_id)

    assert (0, 6) == (book.pool.num_reserved, book.num_free)


def test_the_first_tokens_of_a_block_that_goes_on_otherwise_are_copied() -> None:
    book = make_book(8)
    first = leased(book, 3, A, "r", TOKENS[: 3 * SIZE])
    commit(book, first.lease_id, 3 * SIZE, TOKENS[: 3 * SIZE])
    release(book, first.lease_id)
    again = leased(book, 2, B, "s", TOKENS[: 2 * SIZE - 1])  # its last block was filled since

    assert again.copy is not None
    assert (SIZE, SIZE - 2) == (again.num_cached_tokens, again.copy.num_tokens)
    assert first.blocks.block_ids[1] == again.copy.block_id
    assert again.blocks.block_ids[1] != again.copy.block_id, "never shared"
    assert BlockState.COMMITTED is book.pool.state(again.copy.block_id), "held meanwhile"
    commit(book, again.lease_id, SIZE, (), B)
    assert BlockState.CACHED is book.pool.state(again.copy.block_id)
    assert [] == book.check_integrity()


def test_a_block_is_not_kept_for_a_copy_when_it_is_the_one_that_is_missing() -> None:
    book = make_book(3)
    first = leased(book, 3, A, "r", TOKENS[: 3 * SIZE])
    commit(book, first.lease_id, 3 * SIZE, TOKENS[: 3 * SIZE])
    release(book, first.lease_id)
    given = leased(book, 3, B, "s", [*TOKENS[: SIZE + 2], 99, 99, 99, 99])

    assert (SIZE, None) == (given.num_cached_tokens, given.copy)
    assert [] == book.check_integrity()


def ranked(book: LeaseBook, request: str, num_blocks: int, priority: int, age_s: float) -> Leased:
    worker = A if request.startswith("a") else B
    message = Lease(
        request_id=RequestId(request),
        attempt=1,
        worker_id=worker[0],
        worker_epoch=worker[1],
        num_blocks=num_blocks,
        layout="",
        priority=priority,
        elapsed_ms=1000 * age_s,
    )
    given = book.lease(message, 0.0)
    assert isinstance(given, Leased)
    return given


def short(book: LeaseBook, given: Leased | None, worker: Holder = A) -> Blocks:
    message = Grant(
        worker_id=worker[0],
        worker_epoch=worker[1],
        num_blocks=2,
        short_lease_id=given.lease_id if given is not None else None,
    )
    return book.grant(message, 0.0).blocks


def test_idle_grants_are_asked_back_while_somebody_waits() -> None:
    book = make_book(20)
    held = grant(book, 20, B)
    assert [] == book.pressure.reclaims()
    assert "no_blocks" == reason(lease(book, 2, A, "r"))

    assert [Reclaim(B[0], 20)] == book.pressure.reclaims()
    assert [] == book.pressure.reclaims(), "asked once for each refusal"
    back = Blocks(held.block_ids[:18], held.generations[:18])
    for _ in range(2):
        book.pressure.reclaimed(Reclaim(B[0], 20), Reclaimed(B[0], back))
    assert 18 == book.num_free
    assert isinstance(lease(book, 2, A, "r"), Leased)
    assert 2 == len(grant(book, 8, B, short=None).block_ids), "few while others wait"
    assert [] == book.check_integrity()


def test_of_workers_that_are_all_stuck_the_newest_of_the_lowest_priority_gives_way() -> None:
    book = make_book(6)
    stuck = ranked(book, "a", 2, 1, 5.0)
    ranked(book, "b old", 1, 0, 9.0)
    ranked(book, "b new", 1, 0, 3.0)
    ranked(book, "b important", 2, 2, 1.0)
    short(book, None, B)  # who asks for blocks is a decode worker
    assert 0 == len(short(book, stuck).block_ids)

    named = [each for each in book.pressure.reclaims() if each.preempt_request_id]
    assert [(B[0], "b new", 1)] == [
        (each.worker_id, each.preempt_request_id, each.preempt_attempt) for each in named
    ]


def test_nobody_gives_way_to_a_less_important_one_or_to_his_own_worker() -> None:
    book = make_book(4)
    low, high = ranked(book, "a low", 2, 0, 1.0), ranked(book, "b high", 2, 1, 1.0)
    for given, worker in ((low, A), (high, B)):
        short(book, given, worker)
        named = [
            each.preempt_request_id for each in book.pressure.reclaims() if each.preempt_request_id
        ]
        assert named == (["a low"] if worker == B else [])
    release(book, high.lease_id, B, request="b high")
    ranked(book, "a newer", 2, 0, 0.5)
    short(book, low, A)
    assert [] == [each for each in book.pressure.reclaims() if each.preempt_request_id]


def test_a_question_for_blocks_that_is_repeated_is_answered_the_same() -> None:
    """The answer may have been lost, and with it blocks that nobody would know of."""
    book = make_book(20)
    asked = Grant(worker_id=A[0], worker_epoch=A[1], num_blocks=3, number=1)
    first, again = (book.grant(asked, 0.0).blocks for _ in range(2))

    assert (first, 3) == (again, count(book, BlockState.GRANTED))
    new = Grant(worker_id=A[0], worker_epoch=A[1], num_blocks=3, number=2)
    assert not set(first.block_ids) & set(book.grant(new, 0.0).blocks.block_ids)
    book.worker_gone(*A)
    assert 20 == book.num_free


def test_a_lease_asked_for_again_lasts_from_then_on_and_not_beyond_its_end() -> None:
    book = make_book(8)
    first = lease(book, 2, A, "r", now=0.0)
    again = lease(book, 2, A, "r", now=25.0)
    assert first == again
    assert {} == book.sweep(40.0), "whoever heard the second answer counts from it"

    assert "expired" == reason(lease(book, 2, A, "r", now=55.0))


def test_whoever_gave_up_gets_no_lease_any_more() -> None:
    """A lease made after its asker gave up would be renewed by nobody."""
    book = make_book(8)
    given_up = Release(request_id=RequestId("r"), attempt=1, worker_id=A[0], is_tombstone=True)
    book.release(given_up, 0.0)

    assert "cancelled" == reason(lease(book, 2, A, "r"))


def test_nobody_gives_way_while_blocks_are_free_nor_who_cannot() -> None:
    book = make_book(6)
    stuck = ranked(book, "a", 2, 1, 5.0)
    ranked(book, "b old", 1, 0, 9.0)
    newest = ranked(book, "b new", 3, 0, 3.0)
    short(book, None, B)
    short(book, stuck)
    release(book, newest.lease_id, B, request="b new")
    assert [] == [each for each in book.pressure.reclaims() if each.preempt_request_id]

    ranked(book, "b newer", 3, 0, 2.0)
    short(book, stuck)
    (named,) = [each for each in book.pressure.reclaims() if each.preempt_request_id]
    book.pressure.reclaimed(named, Reclaimed(B[0], is_unable=True))
    short(book, stuck)
    (other,) = [each for each in book.pressure.reclaims() if each.preempt_request_id]
    assert ("b newer", "b old") == (named.preempt_request_id, other.preempt_request_id)
