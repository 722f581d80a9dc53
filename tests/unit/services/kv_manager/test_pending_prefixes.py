"""A prefix is computed once: whoever comes second waits for the first, and not for a stuck one."""

from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.pending import STALL_S
from slipstream.shared.ids import LeaseId
from slipstream.shared.messages.kv import KvRefused, Leased, Match, Matched
from slipstream.shared.messages.packed import PackedInts

from .lease_messages import BLOCK_SIZE as SIZE
from .lease_messages import A, B, commit, lease, leased, make_book, reason, release

PROMPT = list(range(1, 4 * SIZE + 2))  # four blocks and a token


def ask(book: LeaseBook, tokens: list[int], now: float = 0.0, request: str = "s") -> object:
    num_blocks = -(-len(tokens) // SIZE)
    return lease(book, num_blocks, B, request, now, tokens, is_patient=True)


def match(book: LeaseBook, tokens: list[int], now: float = 0.0) -> Matched:
    return book.match(Match(PackedInts(tokens), ""), now)


def awaited(book: LeaseBook, tokens: list[int], now: float = 0.0) -> LeaseId | None:
    return book.awaited(Match(PackedInts(tokens), ""), now)


def test_the_second_waits_from_commit_to_commit_and_computes_its_own_rest() -> None:
    book = make_book(20)
    first = leased(book, 5, A, "r", PROMPT)
    other = [*PROMPT[: 2 * SIZE], 99, 99, 99, 99, 99]  # the same for two blocks
    assert "pending" == reason(ask(book, other))
    assert first.lease_id == awaited(book, other)
    assert 2 * SIZE == match(book, other).num_pending_tokens
    commit(book, first.lease_id, SIZE, PROMPT[:SIZE])
    assert "pending" == reason(ask(book, other))
    commit(book, first.lease_id, 2 * SIZE, PROMPT[SIZE : 2 * SIZE])

    given = ask(book, other)
    assert isinstance(given, Leased)
    assert 2 * SIZE == given.num_cached_tokens
    assert first.blocks.block_ids[:2] == given.blocks.block_ids[:2]
    assert "pending" == reason(ask(book, PROMPT, request="t"))
    assert [] == book.check_integrity()


def test_who_needs_the_last_token_of_a_block_computes_that_block() -> None:
    """At least one token is computed: a prompt that ends with the block waits for none of it."""
    book = make_book(20)
    leased(book, 1, A, "r", PROMPT[:SIZE])

    assert isinstance(ask(book, PROMPT[:SIZE]), Leased)


def test_the_impatient_the_salted_and_the_different_do_not_wait() -> None:
    book = make_book(30)
    leased(book, 5, A, "r", PROMPT)
    salted = lease(book, 5, B, "a", 0.0, PROMPT, is_patient=True, cache_salt="x")

    assert isinstance(salted, Leased)
    assert isinstance(lease(book, 5, B, "b", 0.0, PROMPT), Leased)
    assert isinstance(ask(book, [0, *PROMPT[1:]]), Leased)
    assert awaited(book, [9] * 9) is None


def test_when_the_writer_ends_the_next_one_goes_on_from_its_last_commit() -> None:
    moved: list[LeaseId] = []
    for how in ("released", "died", "expired"):
        book = make_book(20)
        book.on_moved = moved.append
        first = leased(book, 5, A, "r", PROMPT)
        commit(book, first.lease_id, SIZE, PROMPT[:SIZE])
        assert "pending" == reason(ask(book, PROMPT))
        moved.clear()
        if how == "released":
            release(book, first.lease_id)
        elif how == "died":
            book.worker_gone(*A)
        else:
            book.sweep(31.0)
        assert [first.lease_id] == moved, "who waits hears of it"

        given = ask(book, PROMPT, 31.0)
        assert isinstance(given, Leased), how
        assert SIZE == given.num_cached_tokens
        assert "pending" == reason(ask(book, PROMPT, 31.0, "t")), "the next writer is followed"
        assert [] == book.check_integrity()


def test_a_stuck_writer_is_passed_and_then_the_one_that_passed_it_is_followed() -> None:
    book = make_book(20)
    stuck = leased(book, 5, A, "r", PROMPT)
    assert isinstance(ask(book, PROMPT, STALL_S), KvRefused)
    passing = ask(book, PROMPT, STALL_S + 0.1)
    assert isinstance(passing, Leased)
    assert passing.lease_id == awaited(book, PROMPT, STALL_S + 0.2)
    release(book, stuck.lease_id)

    assert passing.lease_id == awaited(book, PROMPT, STALL_S + 0.2)
    release(book, passing.lease_id, B, request="s")
    assert awaited(book, PROMPT, STALL_S + 0.2) is None
    assert 0 == len(book.pending)
