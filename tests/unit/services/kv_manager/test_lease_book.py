"""Who may write which block: the verbs one by one."""

import pytest

from slipstream.services.kv_manager.pool import BlockState
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.kv import (
    Adopted,
    Blocks,
    Committed,
    Grant,
    Leased,
    Release,
)
from slipstream.shared.messages.packed import PackedInts

from .lease_messages import (
    BLOCK_SIZE,
    LEASE_S,
    A,
    B,
    adopt,
    commit,
    count,
    grant,
    lease,
    leased,
    make_book,
    reason,
    release,
    renew,
)


def test_a_repeated_lease_is_answered_like_the_first() -> None:
    book = make_book()

    assert leased(book) == leased(book)
    assert 6 == book.pool.num_free


def test_an_attempt_that_somebody_holds_is_refused_to_others() -> None:
    book = make_book()
    leased(book)

    assert "not_holder" == reason(lease(book, holder=B))


def test_what_never_fits_is_told_from_what_does_not_fit_now() -> None:
    book = make_book()
    leased(book, 5)

    assert "too_large" == reason(lease(book, 9, request="s"))
    assert "no_blocks" == reason(lease(book, 4, request="s"))
    assert 3 == book.pool.num_free


def test_a_process_without_a_connection_gets_nothing() -> None:
    """Its message arrived after its end: nobody would ever give the blocks back."""
    book = make_book()
    book.worker_gone(*A)
    given = leased(book, holder=B)

    assert "stale_epoch" == reason(lease(book, holder=A, request="s"))
    assert [] == list(grant(book, 4, A).block_ids)
    book.worker_gone(*B)
    assert "unknown_lease" == reason(adopt(book, given.lease_id))
    assert book.pool.num_blocks == book.pool.num_free


def test_a_lease_is_not_passed_to_a_process_that_is_gone() -> None:
    book = make_book()
    given = leased(book)
    book.worker_gone(*B)

    assert "stale_epoch" == reason(adopt(book, given.lease_id))
    assert release(book, given.lease_id, A)


def test_whole_blocks_alone_are_committed() -> None:
    book = make_book()
    given = leased(book, 3)

    assert Committed(num_blocks=2) == commit(book, given.lease_id, 2 * BLOCK_SIZE + 3)
    assert Committed(num_blocks=2) == commit(book, given.lease_id, BLOCK_SIZE), "late, no step back"
    assert (1, 2) == (count(book, BlockState.LEASED), count(book, BlockState.COMMITTED))


def test_adopt_passes_the_right_to_write_in_one_step() -> None:
    book = make_book()
    given = leased(book, 3)
    commit(book, given.lease_id, BLOCK_SIZE)
    adopted = adopt(book, given.lease_id)

    assert isinstance(adopted, Adopted)
    assert given.blocks == adopted.blocks
    assert adopted == adopt(book, given.lease_id), "a repeat is answered like the first"
    assert "not_holder" == reason(commit(book, given.lease_id, 3 * BLOCK_SIZE))
    assert not release(book, given.lease_id, A), "what its giver still says is late"
    assert release(book, given.lease_id, B)


@pytest.mark.parametrize("is_swept", [True, False])
def test_an_adopt_after_the_end_of_the_lease_is_refused(is_swept: bool) -> None:
    book = make_book()
    given = leased(book)
    if is_swept:
        assert [given.lease_id] == list(book.sweep(LEASE_S))

    assert "expired" == reason(adopt(book, given.lease_id, LEASE_S))


def test_a_renewal_extends_and_tells_what_is_lost() -> None:
    book = make_book()
    given = leased(book)

    assert [] == renew(book, given.lease_id, A, now=20)
    assert not book.sweep(LEASE_S + 1)
    assert [given.lease_id] == renew(book, given.lease_id, B)
    assert {given.lease_id: (RequestId("r"), 1)} == book.sweep(20 + LEASE_S)
    assert [given.lease_id] == renew(book, given.lease_id, A, now=60)


def test_granted_blocks_enter_a_lease_once_however_often_it_is_said() -> None:
    book = make_book()
    given = leased(book, 1, B)
    granted = grant(book, 3)
    grown = Blocks(granted.block_ids[:2], granted.generations[:2])
    for _ in range(2):
        renew(book, given.lease_id, B, grown)

    assert (3, 1) == (count(book, BlockState.LEASED), count(book, BlockState.GRANTED))
    assert release(book, given.lease_id, B, granted)
    assert book.pool.num_blocks == book.pool.num_free


def test_blocks_of_another_worker_or_generation_do_not_enter() -> None:
    book = make_book()
    given = leased(book, 1, A)
    granted = grant(book, 2, B)
    stale = Blocks(granted.block_ids, PackedInts(g - 1 for g in granted.generations))
    renew(book, given.lease_id, A, granted)
    given_b = leased(book, 1, B, "s")
    renew(book, given_b.lease_id, B, stale)

    assert 2 == count(book, BlockState.GRANTED)


def test_a_lost_lease_takes_the_blocks_that_grew_in_back_with_it() -> None:
    book = make_book()
    given = leased(book, 1, B)
    granted = grant(book, 3)
    book.sweep(LEASE_S)

    assert [given.lease_id] == renew(book, given.lease_id, B, granted)
    assert release(book, given.lease_id, B, granted)
    assert book.pool.num_blocks == book.pool.num_free


def test_expiry_frees_the_committed_and_quarantines_the_writable() -> None:
    book = make_book()
    given = leased(book, 3)
    commit(book, given.lease_id, BLOCK_SIZE)
    book.sweep(LEASE_S)

    assert (2, 6) == (count(book, BlockState.QUARANTINED), book.pool.num_free)
    assert not release(book, given.lease_id, B), "only its owner can prove"
    assert 2 == count(book, BlockState.QUARANTINED)
    assert release(book, given.lease_id, A)
    assert book.pool.num_blocks == book.pool.num_free


def test_the_end_of_a_process_frees_all_it_held_and_nothing_else() -> None:
    book = make_book()
    expired = leased(book, 1, A, "old")
    book.sweep(LEASE_S)
    leased(book, 2, A, "new")
    grant(book, 1, A)
    leased(book, 1, B, "other")

    assert 4 == book.worker_gone(*A)
    assert 1 == len(book.table)
    assert not release(book, expired.lease_id, A)
    assert [] == book.check_integrity()


def test_a_lease_whose_answer_was_lost_is_released_by_its_attempt() -> None:
    book = make_book()
    leased(book)

    assert not release(book, None, B)
    assert release(book, None, A)
    assert book.pool.num_blocks == book.pool.num_free


def test_an_attempt_with_a_tombstone_gets_no_lease_for_two_lease_times() -> None:
    book = make_book()
    book.release(Release(request_id=RequestId("r"), attempt=1, is_tombstone=True), 0)

    assert "cancelled" == reason(lease(book))
    book.sweep(2 * LEASE_S + 1)
    assert isinstance(lease(book), Leased)


def test_nothing_is_remembered_of_what_is_over() -> None:
    book = make_book()
    for number in range(100):
        given = leased(book, 2, A, f"r{number}")
        tombstone = Release(
            request_id=RequestId(f"r{number}"),
            attempt=1,
            lease_id=given.lease_id,
            worker_id=A[0],
            is_tombstone=True,
        )
        book.release(tombstone, 0)
    book.sweep(2 * LEASE_S + 1)
    for worker in (A, B):
        book.worker_gone(*worker)

    tables = (
        book.table.leases,
        book.table.by_attempt,
        book.grants._by_holder,
        book.table.quarantines,
        book._tombstones,
    )
    assert [0] * 5 == [len(table) for table in tables]
    assert not book._present


def test_returned_grants_are_free_and_negative_ones_harmless() -> None:
    book = make_book()
    granted = grant(book, 20)
    message = Grant(worker_id=B[0], worker_epoch=B[1], num_blocks=-3, returned=granted)

    assert 8 == len(granted.block_ids)
    for _ in range(2):
        assert 8 == book.grant(message, 0.0).num_free_blocks
