"""
Rejection sampling: take a draft token or replace it, so that tokens come as the target's would.

p is what the target would sample the position from, q what the draft token x was sampled from,
both after their own truncations:

1. x is taken with probability min(1, p(x) / q(x))
2. else one is sampled from the residual, norm(max(0, p - q)), or from p where that is nothing

So a token comes with probability min(p, q) by the first way, and with what is missing to p by the
second: p, whatever q is ("Fast Inference from Transformers via Speculative Decoding",
arXiv:2211.17192). A better q only means that more is taken, the sum of min(p, q).

A token that was looked up and not drawn has a q of 1 for itself: it is taken with p(x), and the
residual is p without it. That is right for any token, wherever it comes from, as long as it does
not depend on the noise here, which no draft needs to know.
"""

from dataclasses import dataclass

import numpy as np

from slipstream.shared.model.noise import uniform_noise
from slipstream.shared.model.row_passes import Scores, TokenIds

# Noise of a position beside that of the tokens, whose ids have 32 bits. A draft that draws from the
# request's noise, to agree with the target more often, must not decide what replaces its tokens.
_NUMBER_OF_ACCEPTANCE = 2**32
_NUMBER_OF_REPLACEMENT = 2**32 + 1


@dataclass(frozen=True, eq=False, slots=True)
class Distribution:
    """Which tokens come how often: ids, ascending, and their probabilities; no others come."""

    token_ids: TokenIds
    probabilities: Scores

    def of(self, token_id: int) -> float:
        """Return the probability of a token."""
        idx = int(np.searchsorted(self.token_ids, token_id))
        is_known = idx < len(self.token_ids) and self.token_ids[idx] == token_id
        return float(self.probabilities[idx]) if is_known else 0.0

    def draw(self, uniform: float) -> int:
        """Return the token at a share in (0, 1) of the way through all probabilities."""
        reached = np.cumsum(self.probabilities)
        # Below the end, also when the product is rounded; on the right of what can't come.
        wanted = min(uniform * reached[-1], np.nextafter(reached[-1], 0.0))
        return int(self.token_ids[np.searchsorted(reached, wanted, side="right")])


@dataclass(frozen=True, eq=False, slots=True)
class DraftToken:
    """A proposed token, and the distribution it was drawn from; None: it was not drawn."""

    token_id: int
    distribution: Distribution | None = None


def take_or_replace(
    target: Distribution, draft: DraftToken, seed: int, output_position: int
) -> int:
    """Return the draft token, or the one that comes in its place."""
    drawn_from = _believed(draft)
    ratio = target.of(draft.token_id) / drawn_from.of(draft.token_id)
    if uniform_noise(seed, output_position, _NUMBER_OF_ACCEPTANCE) <= ratio:
        return draft.token_id
    uniform = uniform_noise(seed, output_position, _NUMBER_OF_REPLACEMENT)
    return residual(target, drawn_from).draw(uniform)


def residual(target: Distribution, drawn_from: Distribution) -> Distribution:
    """Return what is missing to the target where drafts are taken; the target if nothing is."""
    missing = target.probabilities.copy()
    places = np.searchsorted(target.token_ids, drawn_from.token_ids)
    is_inside = places < len(target.token_ids)
    places, token_ids = places[is_inside], drawn_from.token_ids[is_inside]
    is_common = target.token_ids[places] == token_ids
    missing[places[is_common]] -= drawn_from.probabilities[is_inside][is_common]
    np.maximum(missing, 0.0, out=missing)
    total = missing.sum()
    # Rounding leaves nothing where both are the same; a draft's NaN leaves a NaN.
    return Distribution(target.token_ids, missing / total) if total > 0.0 else target


def _believed(draft: DraftToken) -> Distribution:
    """Return what the token was drawn from; one that can't have been counts as looked up."""
    distribution = draft.distribution
    if distribution is not None and distribution.of(draft.token_id) > 0.0:  # also false for NaN
        return distribution
    return Distribution(np.array([draft.token_id]), np.ones(1))
