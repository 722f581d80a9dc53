"""What a lease finds of earlier ones, what it never finds, and what is dropped for room."""

import pytest

from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.pool import BlockState
from slipstream.shared.messages.kv import Blocks, Leased, Match
from slipstream.shared.messages.packed import PackedInts

from .lease_messages import BLOCK_SIZE as SIZE
from .lease_messages import (
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
)

TWELVE = list(range(1, 13))  # three blocks


def serve(book: LeaseBook, tokens: list[int], request: str = "r", **keys: str) -> Leased:
    """Lease, commit and release a sequence."""
    given = leased(book, -(-len(tokens) // SIZE), A, request, tokens, **keys)
    commit(book, given.lease_id, len(tokens), tokens)
    assert release(book, given.lease_id, A, request=request)
    return given


def found(book: LeaseBook, tokens: list[int], **keys: str) -> int:
    """Return how many tokens lie in blocks that a lease would share."""
    match = Match(PackedInts(tokens), **{"layout": "", **keys})
    return book.match(match, 0.0).num_cached_tokens // SIZE * SIZE


def ids_of(given: Leased) -> list[int]:
    return list(given.blocks.block_ids)


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_known_prompt_is_found_but_for_its_last_block(num_blocks: int) -> None:
    """B65: of a prompt of whole blocks at least one token is computed again."""
    book = make_book()
    tokens = TWELVE[: num_blocks * SIZE]
    first = serve(book, tokens)
    again = leased(book, num_blocks, B, "s", tokens)

    assert (num_blocks - 1) * SIZE == again.num_cached_tokens == found(book, tokens)
    assert ids_of(first)[:-1] == ids_of(again)[:-1]
    assert first.blocks.generations[:-1] == again.blocks.generations[:-1]
    assert num_blocks * SIZE == found(book, [*tokens, 99])
    assert [] == book.check_integrity()


def test_leases_share_blocks_that_are_in_use() -> None:
    book = make_book()
    first = leased(book, 3, A, "r", TWELVE)
    commit(book, first.lease_id, 12, TWELVE)
    second = leased(book, 4, B, "s", [*TWELVE, 99])

    assert ids_of(first) == ids_of(second)[:3]
    assert (3, 1) == (count(book, BlockState.COMMITTED), count(book, BlockState.LEASED))
    book.worker_gone(*A)
    assert 3 == count(book, BlockState.COMMITTED), "what a dead worker committed is held by others"
    assert release(book, second.lease_id, B, request="s")
    assert (3, 8) == (count(book, BlockState.CACHED), book.pool.num_available)


@pytest.mark.parametrize("how", ["dies", "expires"])
def test_what_was_not_committed_is_never_found(how: str) -> None:
    book = make_book()
    given = leased(book, 3, A, "r", TWELVE)
    commit(book, given.lease_id, SIZE, TWELVE[:SIZE])
    if how == "dies":
        book.worker_gone(*A)
    else:
        book.sweep(LEASE_S)

    assert SIZE == found(book, TWELVE)
    assert (2 if how == "expires" else 0) == count(book, BlockState.QUARANTINED)
    assert [] == book.check_integrity()


@pytest.mark.parametrize("hash_bits", [0, 8, 128])
def test_colliding_hashes_give_nobody_another_s_block(hash_bits: int) -> None:
    """B64: tokens are compared, and so is what comes before them."""
    book = make_book(32, hash_bits)
    for number in range(6):
        serve(book, [number] * SIZE + TWELVE[:SIZE], f"r{number}")

    for number in range(6):
        again = leased(book, 3, B, f"s{number}", [*[number] * SIZE, *TWELVE])
        assert 2 * SIZE == again.num_cached_tokens
    assert 0 == found(book, TWELVE)
    assert [] == book.check_integrity()


@pytest.mark.parametrize("hash_bits", [0, 128])
def test_keys_of_different_kinds_share_nothing(hash_bits: int) -> None:
    """B69: salt "a", adapter "a" and so on are six different prefixes."""
    kinds = ("layout", "model_fingerprint", "numerics", "cache_salt", "adapter")
    keys: list[dict[str, str]] = [{}, *({kind: "a"} for kind in kinds)]
    book = make_book(32, hash_bits)
    for number, each in enumerate(keys):
        assert 0 == found(book, TWELVE, **each)
        serve(book, TWELVE, f"r{number}", **each)

    assert [2 * SIZE] * 6 == [found(book, TWELVE, **each) for each in keys]
    assert 18 == count(book, BlockState.CACHED)
    assert 0 == found(book, TWELVE, cache_salt="a", adapter="a")
    assert 0 == found(book, TWELVE, cache_salt="aadapter")


def test_of_two_writers_of_the_same_the_first_is_kept() -> None:
    book = make_book()
    first, second = (leased(book, 3, A, request, TWELVE) for request in "rs")
    for given in (first, second):
        commit(book, given.lease_id, 12, TWELVE)

    assert 3 == len(book.prefixes.index)
    assert release(book, second.lease_id, A, request="s")
    assert (3, 5) == (count(book, BlockState.COMMITTED), book.pool.num_free)
    assert release(book, first.lease_id, A)
    assert ids_of(first)[:2] == ids_of(leased(book, 3, B, "t", TWELVE))[:2]


def test_what_the_second_writer_goes_on_to_write_is_found_too() -> None:
    """Both asked the same at once; their answers differ, and each goes on with its own."""
    book = make_book()
    leases = {request: leased(book, 2, A, request, TWELVE[:8]) for request in "rs"}
    for given in leases.values():
        commit(book, given.lease_id, SIZE, TWELVE[:SIZE])
    for number, given in enumerate(leases.values()):
        commit(book, given.lease_id, 2 * SIZE, [number] * SIZE)
    for request, given in leases.items():
        assert release(book, given.lease_id, A, request=request)

    for number in range(2):
        assert 2 * SIZE == found(book, [*TWELVE[:SIZE], *[number] * SIZE, 9])
    assert (3, []) == (count(book, BlockState.CACHED), book.check_integrity())


def test_a_block_is_evicted_before_the_one_it_comes_after_whoever_wrote_that() -> None:
    book = make_book(5)
    first = leased(book, 1, A, "r", TWELVE[:SIZE])
    second = leased(book, 2, A, "s", TWELVE[: 2 * SIZE])
    commit(book, first.lease_id, SIZE, TWELVE[:SIZE])
    commit(book, second.lease_id, 2 * SIZE, TWELVE[: 2 * SIZE])
    release(book, first.lease_id, A)
    serve(book, [50] * SIZE, "t")
    release(book, second.lease_id, A, request="s")
    assert (3, []) == (count(book, BlockState.CACHED), book.check_integrity())

    leased(book, 3, B, "u", [60] * 12)  # evicts the oldest, which stands alone
    assert (0, 2 * SIZE) == (found(book, [50] * 5), found(book, [*TWELVE[:8], 9]))
    leased(book, 1, B, "v", [70])
    assert SIZE == found(book, TWELVE), "the leaf is gone, what it came after is not"
    leased(book, 1, B, "w", [71])
    assert (0, []) == (found(book, TWELVE), book.check_integrity())


def test_what_comes_after_an_evicted_block_is_found_no_more_and_freed_at_the_end() -> None:
    """A block in use can come after one that nobody holds, when two wrote the same."""
    book = make_book(4)
    first = leased(book, 1, A, "r", TWELVE[:SIZE])
    second = leased(book, 3, A, "s", TWELVE)
    commit(book, first.lease_id, SIZE, TWELVE[:SIZE])
    commit(book, second.lease_id, 2 * SIZE, TWELVE[: 2 * SIZE])
    release(book, first.lease_id, A)
    assert 2 == len(book.prefixes.index)

    leased(book, 1, B, "t", [50])
    assert (0, []) == (len(book.prefixes.index), book.check_integrity())
    commit(book, second.lease_id, 3 * SIZE, TWELVE[2 * SIZE :])
    assert release(book, second.lease_id, A, request="s")
    assert (0, 3, []) == (len(book.prefixes.index), book.pool.num_free, book.check_integrity())


def test_cached_blocks_are_there_to_be_taken() -> None:
    book = make_book(4)
    serve(book, TWELVE)
    assert (1, 4) == (book.pool.num_free, book.pool.num_available)

    assert 4 == len(grant(book, 4).block_ids)
    assert (0, 0) == (found(book, TWELVE), len(book.prefixes.index))


def test_what_a_lease_shares_is_not_evicted_for_its_own_fresh_blocks() -> None:
    book = make_book(4)
    serve(book, TWELVE)
    given = leased(book, 4, B, "s", [*TWELVE, 9])

    assert 12 == given.num_cached_tokens
    assert "no_blocks" == reason(lease(book, 1, B, "t"))
    release(book, given.lease_id, B, request="s")
    assert "no_blocks" != reason(lease(book, 4, B, "t", tokens=[50] * 13))


def test_the_least_recently_used_goes_first() -> None:
    book = make_book(3)
    for number in range(3):
        serve(book, [number] * SIZE, f"r{number}")
    serve(book, [0] * SIZE + [9], "again")  # takes the oldest but one for its second block

    assert [SIZE, 0, SIZE] == [found(book, [number] * SIZE + [9]) for number in range(3)]


def test_generated_blocks_that_grew_in_are_committed_with_the_commit() -> None:
    """As at a sequence's end, before any renewal has told of them."""
    book = make_book()
    given = leased(book, 1, A, "r", TWELVE[:3])
    adopt(book, given.lease_id)
    granted = grant(book, 3)
    grown = Blocks(granted.block_ids[:2], granted.generations[:2])
    for _ in range(2):
        commit(book, given.lease_id, 12, TWELVE, B, grown)
    assert release(book, given.lease_id, B, grown)

    assert 12 == found(book, [*TWELVE, 9])
    assert (3, 1) == (count(book, BlockState.CACHED), count(book, BlockState.GRANTED))


@pytest.mark.parametrize(("first", "expected"), [(0, 12), (1, 12), (2, SIZE), (3, SIZE)], ids=str)
def test_a_commit_tells_all_tokens_or_its_blocks_are_not_found(first: int, expected: int) -> None:
    """Told again is well, a block left out ends what is findable of this lease."""
    book = make_book()
    given = leased(book, 3, A, "r", TWELVE)
    commit(book, given.lease_id, SIZE, TWELVE[:SIZE])
    commit(book, given.lease_id, 12, TWELVE[first * SIZE :])
    assert 3 == count(book, BlockState.COMMITTED)
    release(book, given.lease_id)

    assert expected == found(book, [*TWELVE, 9])
    assert (8 - expected // SIZE, []) == (book.pool.num_free, book.check_integrity())


def test_more_tokens_than_positions_are_not_believed() -> None:
    book = make_book()
    given = leased(book, 1, A, "r", TWELVE[:SIZE])
    commit(book, given.lease_id, SIZE, TWELVE)

    assert 0 == len(book.prefixes.index)


def test_a_repeated_lease_finds_what_the_first_found() -> None:
    book = make_book()
    serve(book, TWELVE)
    first = leased(book, 4, B, "s", [*TWELVE, 9])

    assert first == leased(book, 4, B, "s", [*TWELVE, 9])
    assert 3 == count(book, BlockState.COMMITTED)


def test_switched_off_nothing_is_kept_or_found() -> None:
    book = make_book(is_caching=False)
    serve(book, TWELVE)

    assert (0, 8, 0) == (found(book, TWELVE), book.pool.num_free, len(book.prefixes.index))
    assert 0 == leased(book, 3, B, "s", TWELVE).num_cached_tokens


def test_the_index_never_outgrows_the_pool() -> None:
    """B62: each of a thousand prompts is another."""
    book = make_book()
    for number in range(1000):
        serve(book, [number] * 2 * SIZE, f"r{number}")
        assert len(book.prefixes.index) <= book.pool.num_blocks

    assert [] == book.check_integrity()
    assert len(book.prefixes.index._heads) <= book.pool.num_blocks
