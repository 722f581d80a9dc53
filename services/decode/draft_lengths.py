"""How many draft tokens each sequence of a step verifies: as many as pay. Pure."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

_KEPT = 0.95  # of what was seen, for each token that is tested since
_PRIOR_TOKENS = 3.0  # that the prior counts for


class Acceptance:
    """The chance that a draft token is accepted, as the last ones that were tested say."""

    def __init__(self, prior: float, kept: float = _KEPT) -> None:
        self._kept = kept
        self._num_tested = _PRIOR_TOKENS
        self._num_accepted = prior * _PRIOR_TOKENS

    @property
    def rate(self) -> float:
        """Between 0 and 1."""
        return self._num_accepted / self._num_tested

    def saw(self, num_tested: int, num_accepted: int) -> None:
        """Take in a proposal of which so many tokens were tested and accepted."""
        kept = self._kept**num_tested
        self._num_tested = kept * self._num_tested + num_tested
        self._num_accepted = kept * self._num_accepted + num_accepted


class Candidate(NamedTuple):
    """A sequence that has, or would get, a proposal."""

    acceptance: float
    max_num_tokens: int


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
    offers = [(-each.acceptance, idx) for idx, each in enumerate(candidates) if each.max_num_tokens]
    heapq.heapify(offers)
    while offers:
        chance, idx = -offers[0][0], offers[0][1]
        if chance * seconds <= token_s * num_tokens:
            break
        num_tokens += chance
        seconds += token_s
        lengths[idx] += 1
        if lengths[idx] < candidates[idx].max_num_tokens:
            heapq.heapreplace(offers, (-chance * candidates[idx].acceptance, idx))
        else:
            heapq.heappop(offers)
    if num_tokens * step_s <= num_streams * seconds:
        return [0] * len(candidates)
    return lengths
