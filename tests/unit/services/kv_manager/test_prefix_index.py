"""The index of prefixes, beside a plain one that keeps each chain whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.services.kv_manager.prefix_index import IndexedBlock, PrefixIndex, PrefixRoot
from slipstream.services.kv_manager.slices import finish
from slipstream.shared.kv.block_hash import BlockHash, BlockHasher, PrefixKeys

SIZE = 4  # bytes of a block's tokens: one token
Chain = tuple[str, tuple[bytes, ...]]  # the salt, and the blocks


class PlainIndex:
    """Every known chain from its beginning to one of its blocks, and that block's id."""

    def __init__(self) -> None:
        self.chains: dict[Chain, int] = {}

    def find(self, salt: str, blocks: tuple[bytes, ...]) -> list[int]:
        found: list[int] = []
        for end in range(1, len(blocks) + 1):
            block_id = self.chains.get((salt, blocks[:end]))
            if block_id is None:
                break
            found.append(block_id)
        return found

    def remove(self, block_id: int) -> set[int]:
        salt, top = next(chain for chain, each in self.chains.items() if each == block_id)
        below = {
            chain: each
            for chain, each in self.chains.items()
            if chain[0] == salt and chain[1][: len(top)] == top
        }
        for chain in below:
            del self.chains[chain]
        return set(below.values())


def root_of(index: PrefixIndex, salt: str) -> PrefixRoot:
    return index.root(PrefixKeys(layout="", cache_salt=salt))


def add(index: PrefixIndex, first_id: int, blocks: tuple[bytes, ...], salt: str = "") -> None:
    index.extend(root_of(index, salt), range(first_id, first_id + len(blocks)), blocks)


def found(index: PrefixIndex, blocks: tuple[bytes, ...], salt: str = "") -> list[int]:
    chain = index.find(root_of(index, salt), b"".join(blocks), SIZE)
    return [block.block_id for block in chain]


def tokens(text: str) -> tuple[bytes, ...]:
    return tuple(letter.encode() * SIZE for letter in text)


texts = st.text("ab", min_size=1, max_size=9)
salts = st.sampled_from(["", "x"])
steps = st.one_of(
    st.tuples(st.just("add"), texts, salts), st.tuples(st.just("remove"), st.integers(0, 60))
)


@settings(max_examples=300, deadline=None)
@given(hash_bits=st.sampled_from([0, 2, 128]), steps=st.lists(steps, max_size=14))
def test_it_finds_what_a_plain_index_finds(
    hash_bits: int, steps: list[tuple[str, str, str] | tuple[str, int]]
) -> None:
    index, plain = PrefixIndex(BlockHasher(hash_bits)), PlainIndex()
    next_id = 1
    asked: list[tuple[str, tuple[bytes, ...]]] = []
    for step in steps:
        if len(step) == 3:
            _, text, salt = step
            blocks = tokens(text)
            asked.append((salt, blocks))
            add(index, next_id, blocks, salt)
            for end in range(1, len(blocks) + 1):
                plain.chains.setdefault((salt, blocks[:end]), next_id + end - 1)
            next_id += len(blocks)
        elif plain.chains:
            known = sorted(plain.chains.values())
            gone = known[step[1] % len(known)]
            assert plain.remove(gone) == set(index.remove(gone))

        assert [] == finish(index.problems())
        assert len(plain.chains) == len(index)
        for salt, blocks in asked:
            for other in (salt, "x" if salt == "" else ""):
                assert plain.find(other, blocks) == found(index, blocks, other)


@pytest.mark.parametrize("num_same", [0, 1, 2, 5, 30, 63, 64])
def test_a_prompt_is_found_as_far_as_it_is_the_same(num_same: int) -> None:
    index = PrefixIndex(BlockHasher())
    first = tokens("a" * 64)
    add(index, 1, first)

    assert list(range(1, num_same + 1)) == found(index, (*first[:num_same], *tokens("b" * 64)))
    assert list(range(1, num_same + 1)) == found(index, first[:num_same])


def test_a_hash_is_that_of_all_before_it_whichever_run_a_block_is_in() -> None:
    hasher = BlockHasher()
    index = PrefixIndex(hasher)
    add(index, 1, tokens("aaa"))
    add(index, 11, tokens("abc"))

    expected: BlockHash = root_of(index, "").block_hash
    for block_id, each in zip((1, 12, 13), tokens("abc"), strict=True):
        expected = hasher.child(expected, each)
        assert expected == index.hash_of(block_id)


def test_what_is_added_after_an_evicted_tail_is_found_and_nothing_before_it() -> None:
    """The run goes on where it was cut, with other tokens."""
    index = PrefixIndex(BlockHasher(0))
    add(index, 1, tokens("abcd"))
    gone = index.find(root_of(index, ""), b"".join(tokens("abc")), SIZE)[-1]
    assert [3, 4] == index.remove(3)
    add(index, 11, tokens("abxd"))

    assert [1, 2, 13, 14] == found(index, tokens("abxd"))
    assert [1, 2] == found(index, tokens("abcd"))
    assert isinstance(gone, IndexedBlock)
    assert not index.is_known(gone)
    with pytest.raises(AssertionError, match="not in the index"):
        index.child(gone, tokens("d")[0])
