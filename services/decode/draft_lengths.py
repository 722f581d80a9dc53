"""How many draft tokens each sequence of a step verifies: as many as pay. Pure."""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.shared.drafting.rate import KEPT, Acceptance

_FIRST_PRIOR = 0.5
# Proposals are told apart by how many tokens before them agree: up to so many, or more.
_MATCHES = (1, 2, 4, 8)


class Acceptances:
    """
    One for all proposals, and one each for those behind short and long matches.

    What followed where a single token agrees is right one time in five, behind nine tokens nine
    times in ten: a short match is worth a try of one token, a long one many.
    """

    def __init__(self, kept: float = KEPT, like: "Acceptances | None" = None) -> None:
        self._of_all = Acceptance(like.rate if like else _FIRST_PRIOR, kept)
        self._by_match = [
            Acceptance(like.behind(num) if like else _FIRST_PRIOR, kept)
            for num in (*_MATCHES, _MATCHES[-1] + 1)
        ]

    @property
    def rate(self) -> float:
        """That of all proposals."""
        return self._of_all.rate

    def behind(self, num_matched: int) -> float:
        """Return the rate behind matches of about so many tokens."""
        return self._by_match[bisect_left(_MATCHES, num_matched)].rate

    def saw(self, num_matched: int, num_tested: int, num_accepted: int) -> None:
        """Take in a proposal behind so many tokens."""
        self._of_all.saw(num_tested, num_accepted)
        self._by_match[bisect_left(_MATCHES, num_matched)].saw(num_tested, num_accepted)


class Candidate(NamedTuple):
    """A sequence that has, or would get, a proposal."""

    acceptance: float
    max_num_tokens: int
    # Of each token to be reached and accepted, where whoever proposed them can tell.
    chances: Sequence[float] = ()

    def chance(self, place: int) -> float:
        """Return the chance of a token to be reached and accepted."""
        return self.chances[place] if self.chances else self.acceptance ** (place + 1)


def worthwhile(
    candidates: Sequence[Candidate],
    num_streams: int,
    step_s: float,
    token_s: float,
    ask_s: float = 0.0,
) -> list[int]:
    """
    Return how many draft tokens of each candidate make the most tokens a second.

    A step of `num_streams` lasts `step_s` and says a token each; every draft token lengthens it by
    `token_s`. Token k of a sequence that accepts with chance a is reached and accepted with a^k, so
    that it is worth its time as long as a^k / token_s is more than what the step yields a second
    without it: the best E / (gamma c + r) of kernels.md, 4.4, over all sequences at once. Asking
    takes `ask_s`; where that is more than is won, nothing is asked for.
    """
    lengths = [0] * len(candidates)
    num_tokens, seconds = float(num_streams), step_s + ask_s
    offers = [(-each.chance(0), idx) for idx, each in enumerate(candidates) if each.max_num_tokens]
    heapq.heapify(offers)
    while offers:
        chance, idx = -offers[0][0], offers[0][1]
        if chance * seconds <= token_s * num_tokens:
            break
        num_tokens += chance
        seconds += token_s
        lengths[idx] += 1
        if lengths[idx] < candidates[idx].max_num_tokens:
            heapq.heapreplace(offers, (-candidates[idx].chance(lengths[idx]), idx))
        else:
            heapq.heappop(offers)
    if num_tokens * step_s <= num_streams * seconds:
        return [0] * len(candidates)
    return lengths
