"""Who waited for blocks has its turn, and nobody waits for one that is gone."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.services.kv_manager.claims import EXPIRES_S, PATIENCE_S
from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.shared.ids import LeaseId, RequestId
from slipstream.shared.messages.kv import Lease, Leased, Release

from .lease_messages import A, B, make_book, release

LATER = PATIENCE_S + 0.1
_ASKS_EVERY_S = 0.2


def ask(
    book: LeaseBook,
    request: str,
    num_blocks: int,
    now: float,
    arrived_at: float,
    priority: int = 0,
    num_spare: int = 0,
) -> LeaseId | None:
    """Lease blocks as a request that arrived at a time; None when there are too few."""
    answer = book.lease(
        Lease(
            request_id=RequestId(request),
            attempt=1,
            worker_id=A[0],
            worker_epoch=A[1],
            num_blocks=num_blocks,
            layout="",
            priority=priority,
            elapsed_ms=(now - arrived_at) * 1000,
            num_spare_blocks=num_spare,
        ),
        now,
    )
    if isinstance(answer, Leased):
        return answer.lease_id
    assert "no_blocks" == answer.reason
    return None


def waiting_book() -> LeaseBook:
    """Of eight blocks six are held; a request from before all others wants four, and has waited."""
    book = make_book(8)
    assert ask(book, "runs", 6, 0.0, 0.0)
    for now in (0.0, 0.3, LATER):
        assert ask(book, "old", 4, now, -10.0) is None
    return book


def test_a_new_one_does_not_take_what_an_old_one_waits_for() -> None:
    book = waiting_book()
    assert ask(book, "new", 1, LATER, LATER) is None
    assert release(book, None, A, request="runs")

    assert ask(book, "large", 5, LATER, LATER) is None
    assert ask(book, "new", 4, LATER, LATER), "what is left beside is for anybody"
    assert ask(book, "newer", 1, LATER, LATER) is None
    assert ask(book, "old", 4, LATER, -10.0)
    assert [] == book.check_integrity()


def test_who_has_not_waited_long_is_passed() -> None:
    book = make_book(8)
    assert ask(book, "runs", 6, 0.0, 0.0)
    assert ask(book, "old", 4, 0.0, -10.0) is None

    assert ask(book, "new", 2, PATIENCE_S - 0.1, 0.0)


@pytest.mark.parametrize(("arrived_at", "priority"), [(-20.0, 0), (LATER, 1)])
def test_the_more_important_do_not_wait_for_the_less_important(
    arrived_at: float, priority: int
) -> None:
    assert ask(waiting_book(), "first", 2, LATER, arrived_at, priority)


def test_the_first_in_line_is_the_most_important_that_waits() -> None:
    book = waiting_book()
    for now in (LATER, 2 * LATER):
        assert ask(book, "older", 3, now, -20.0) is None
        assert ask(book, "old", 4, now, -10.0) is None
    assert release(book, None, A, request="runs")

    assert ask(book, "old", 4, 2 * LATER, -10.0), "beside three that are kept there are five"
    assert ask(book, "new", 1, 2 * LATER, 0.0), "one is nobody's"
    assert ask(book, "newer", 1, 2 * LATER, 0.0) is None
    assert ask(book, "older", 3, 2 * LATER, -20.0)


def test_one_that_asks_no_more_keeps_nobody_waiting() -> None:
    book = waiting_book()

    assert ask(book, "new", 2, LATER + EXPIRES_S - 0.01, LATER) is None
    assert ask(book, "new", 2, LATER + EXPIRES_S, LATER)
    book.sweep(LATER + EXPIRES_S)
    assert 0 == len(book.claims)


def _cancel(book: LeaseBook) -> None:
    book.release(Release(request_id=RequestId("old"), attempt=1, is_tombstone=True), LATER)


def _end_worker(book: LeaseBook) -> None:
    book.worker_gone(*A)
    book.worker_joined(*A)


@pytest.mark.parametrize("end", [_cancel, _end_worker])
def test_a_request_that_is_over_keeps_nobody_waiting(end: Callable[[LeaseBook], None]) -> None:
    book = waiting_book()
    end(book)

    assert ask(book, "new", 2, LATER, LATER)
    assert 0 == len(book.claims)


def test_the_end_of_another_worker_changes_nothing() -> None:
    book = waiting_book()
    book.worker_gone(*B)

    assert ask(book, "new", 2, LATER, LATER) is None


def test_a_lease_is_refused_unless_it_leaves_what_others_grow_by() -> None:
    book = make_book(8)

    assert ask(book, "r", 6, 0.0, 0.0, num_spare=3) is None
    assert ask(book, "r", 6, 0.0, 0.0, num_spare=2)
    assert ask(book, "s", 2, 0.0, 0.0), "they are not held"


def test_what_must_be_left_is_kept_for_it_too() -> None:
    book = make_book(8)
    assert ask(book, "runs", 4, 0.0, 0.0)
    for now in (0.0, LATER):
        assert ask(book, "old", 4, now, -10.0, num_spare=2) is None
    assert release(book, None, A, request="runs")

    assert ask(book, "new", 3, LATER, LATER) is None
    assert ask(book, "new", 2, LATER, LATER)


@settings(max_examples=60, deadline=None)
@given(
    num_wanted=st.integers(1, 12),
    stream=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 12)), min_size=4, max_size=12
    ),  # blocks, and for how many tenths of a second they are held
)
def test_a_large_old_one_has_its_turn_in_any_stream_of_new_ones(
    num_wanted: int, stream: list[tuple[int, int]]
) -> None:
    """New ones ask ten times as often as it does, and take whatever they get."""
    book = make_book(12)
    living: list[tuple[float, str]] = []
    num_asked = 0
    longest_s = max(tenths for _, tenths in stream) / 10
    now = 0.0
    while True:
        for ends_at, request in [each for each in living if each[0] <= now]:
            living.remove((ends_at, request))
            assert release(book, None, A, request=request)
        for _ in range(5):
            num_blocks, tenths = stream[num_asked % len(stream)]
            num_asked += 1
            if ask(book, f"new{num_asked}", num_blocks, now, now):
                living.append((now + tenths / 10, f"new{num_asked}"))
        if round(now * 100) % round(_ASKS_EVERY_S * 100) == 0 and ask(
            book, "old", num_wanted, now, -1.0
        ):
            break
        now = round(now + 0.02, 2)
        assert now <= PATIENCE_S + longest_s + 2 * _ASKS_EVERY_S, "it is starved"
    assert [] == book.check_integrity()
