"""Prompt lookup against a plain search through all that was said."""

from itertools import islice, takewhile

from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.worker.ngram import NgramIndex


def agreement(token_ids: list[int], end: int) -> int:
    """Return how many tokens before `end` are those at the end, up to sixteen."""
    pairs = zip(reversed(token_ids[:end]), reversed(token_ids), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], islice(pairs, 16))))


def search(token_ids: list[int], min_ngram: int, max_ngram: int, max_num_tokens: int) -> list[int]:
    """
    Return how it goes on if it does as behind the longest suffix that occurred before.

    Of its last four places that which agrees for longest, of those the latest; what is copied from
    there is copied again where it ends.
    """
    for size in range(max_ngram, min_ngram - 1, -1):
        suffix = token_ids[-size:]
        places = [
            end
            for end in range(size, len(token_ids))
            if len(token_ids) >= size and token_ids[end - size : end] == suffix
        ]
        if places:
            first = max(places[-4:], key=lambda end: (agreement(token_ids, end), end))
            said = list(token_ids)
            for place in range(first, first + max_num_tokens):
                said.append(said[place])
            return said[len(token_ids) :]
    return []


@given(
    token_ids=st.lists(st.integers(0, 2), max_size=60),
    sizes=st.sampled_from([(1, 1), (1, 3), (2, 4), (3, 3)]),
    max_num_tokens=st.integers(1, 6),
    cut=st.integers(0, 60),
)
def test_proposals_are_those_of_a_plain_search(
    token_ids: list[int], sizes: tuple[int, int], max_num_tokens: int, cut: int
) -> None:
    index = NgramIndex(*sizes)
    index.extend(token_ids[:cut])
    index.extend(token_ids[cut:])

    assert search(token_ids, *sizes, max_num_tokens) == index.propose(max_num_tokens)
    assert len(token_ids) == index.num_tokens
    match = index.find()
    assert match is None or agreement(token_ids, match.end) == match.num_matched
