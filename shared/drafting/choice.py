"""Choose a draft token from a row of logits as the target's sampler would, nearly."""

from dataclasses import dataclass

import numpy as np

from slipstream.shared.messages.draft import DraftSampling
from slipstream.shared.model.noise import gumbel_noise
from slipstream.shared.model.row_passes import Logits, Peak, TokenIds, row_passes
from slipstream.shared.model.sampling import GREEDY_TEMPERATURE

# Of a row so many are in the race: what lies behind them wins less often than a draft is wrong.
_NUM_CONTENDERS = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """A token, by its place in the head, and the probability that the draft gives it."""

    place: int
    probability: float


def choose(
    row: Logits, peak: Peak, sampling: DraftSampling | None, output_position: int, known: TokenIds
) -> Choice:
    """
    Return the likeliest token, or the one that the request's noise makes the winner.

    The noise of a token is a function of the request's seed, the position and the token alone. As
    the target draws with the same, both agree far more often than if each drew for itself. `known`
    are the token ids of the row's places.
    """
    if sampling is None or sampling.temperature <= GREEDY_TEMPERATURE:
        # Nothing but how many are drafted hangs on it: a plain sum in float32 does.
        return Choice(peak.token_id, 1.0 / float(np.exp(row - np.float32(peak.logit)).sum()))
    num_contenders = min(sampling.top_k or _NUM_CONTENDERS, _NUM_CONTENDERS)
    ranked = row_passes().largest(row, num_contenders)
    scores = row[ranked].astype(np.float64) / sampling.temperature
    chances = np.exp(scores - scores[0])
    chances /= chances.sum()
    if sampling.top_p < 1.0:
        num_kept = int(np.searchsorted(np.cumsum(chances), sampling.top_p)) + 1
        ranked, scores = ranked[:num_kept], scores[:num_kept]
    noise = gumbel_noise(sampling.seed, output_position, known[ranked])
    winner = int((scores + noise).argmax())
    return Choice(int(ranked[winner]), float(chances[winner]))
