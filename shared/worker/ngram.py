"""
Prompt lookup: propose what followed the last time that the sequence ended like this.

Saxena, "Prompt Lookup Decoding", 2023. O(1) a token: each n-gram's latest end is kept in a table.
"""

from collections.abc import Sequence

NGram = tuple[int, ...]

# What is looked up unless told otherwise: shorter matches say little, longer ones hardly more.
MIN_NGRAM, MAX_NGRAM = 2, 4


class NgramIndex:
    """The tokens of one sequence and where each of its n-grams ended last."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)  # longer matches first
        self._token_ids: list[int] = []
        self._ends: dict[NGram, int] = {}

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
                    self._ends[tuple(self._token_ids[end - size : end])] = end
            self._token_ids.append(token_id)

    def propose(self, max_num_tokens: int) -> list[int]:
        """Return so many tokens as followed the longest, latest match; none where there is none."""
        for size in self._sizes:
            if self.num_tokens < size:
                continue
            end = self._ends.get(tuple(self._token_ids[-size:]))
            if end is not None:
                return self._from(end, max_num_tokens)
        return []

    def _from(self, end: int, max_num_tokens: int) -> list[int]:
        """Return what followed; a match that is near goes on the same way, round and round."""
        followed = self._token_ids[end : end + max_num_tokens]
        return [followed[place % len(followed)] for place in range(max_num_tokens)]
