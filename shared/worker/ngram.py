"""
Prompt lookup: propose what followed earlier, where the sequence had last said the same for longest.

Saxena, "Prompt Lookup Decoding", 2023. O(1) a token: the latest ends of each n-gram are kept in a
table, and of those the one before which most tokens agree is taken.
"""

from collections.abc import Sequence
from typing import NamedTuple

NGram = tuple[int, ...]

# What is looked up unless told otherwise. A single token says little, which its acceptance tells
# (`services/decode/draft_lengths.py`); longer ones are told apart by how far they agree.
MIN_NGRAM, MAX_NGRAM = 1, 3
_NUM_ENDS = 4  # latest ones of each n-gram, among which the best is looked for
MAX_NUM_MATCHED = 16  # agreement is not counted any further


class Match(NamedTuple):
    """An earlier place of the sequence that reads like its end."""

    end: int  # the position of the token that followed
    num_matched: int  # tokens before it that are those at the sequence's end


class NgramIndex:
    """The tokens of one sequence and where each of its n-grams ended last."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)  # longer matches first
        self._token_ids: list[int] = []
        self._ends: dict[NGram, list[int]] = {}  # of each n-gram the latest, in order

    @property
    def num_tokens(self) -> int:
        """Tokens known."""
        return len(self._token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """
        Append tokens.

        An n-gram is entered only when a token follows it, so that the sequence's own end never
        matches itself.
        """
        for token_id in token_ids:
            end = len(self._token_ids)
            for size in self._sizes:
                if end >= size:
                    self._enter(tuple(self._token_ids[end - size : end]), end)
            self._token_ids.append(token_id)

    def find(self) -> Match | None:
        """Return the place that agrees with the sequence's end for longest, of those the latest."""
        for size in self._sizes:
            if self.num_tokens < size:
                continue
            ends = self._ends.get(tuple(self._token_ids[-size:]))
            if ends is not None:
                matches = [Match(end, self._num_matched(end, size)) for end in reversed(ends)]
                return max(matches, key=lambda match: match.num_matched)
        return None

    def continued(self, match: Match, num_tokens: int) -> list[int]:
        """Return what followed there; from a near place on it goes round and round."""
        followed = self._token_ids[match.end : match.end + num_tokens]
        return [followed[place % len(followed)] for place in range(num_tokens)]

    def propose(self, max_num_tokens: int) -> list[int]:
        """Return so many tokens as followed the best match; none where there is none."""
        match = self.find()
        return [] if match is None else self.continued(match, max_num_tokens)

    def _enter(self, ngram: NGram, end: int) -> None:
        ends = self._ends.setdefault(ngram, [])
        ends.append(end)
        if len(ends) > _NUM_ENDS:
            del ends[0]

    def _num_matched(self, end: int, num_known: int) -> int:
        """Return how many tokens before `end` agree, of which so many are known to."""
        said, last, num = self._token_ids, self.num_tokens, num_known
        limit = min(end, MAX_NUM_MATCHED)
        while num < limit and said[end - num - 1] == said[last - num - 1]:
            num += 1
        return num
