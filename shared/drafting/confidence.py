"""How often a draft that is so sure of itself turns out right, as far as it was seen. Pure."""

import math

# By the probability that a draft gives its token, on the scale of log-odds, where differences
# near 1 count as much as those near 0.
_NUM_BINS = 12
_RANGE = 4.0  # log-odds of the outermost bins
_PRIOR_TOKENS = 8.0
_KEPT = 0.98  # of what was seen in a bin, for each token since: requests differ


class Confidence:
    """Turns probabilities into chances of acceptance; bins whose neighbours are their prior."""

    def __init__(self) -> None:
        centres = [_RANGE * (2 * idx + 1 - _NUM_BINS) / (_NUM_BINS - 1) for idx in range(_NUM_BINS)]
        self._num_tested = [_PRIOR_TOKENS] * _NUM_BINS
        self._num_accepted = [_PRIOR_TOKENS / (1 + math.exp(-each)) for each in centres]

    def chance(self, probability: float) -> float:
        """Return the chance that a token of this probability is accepted."""
        idx = _bin_of(probability)
        return self._num_accepted[idx] / self._num_tested[idx]

    def saw(self, probability: float, *, is_accepted: bool) -> None:
        """Take in what became of a token."""
        idx = _bin_of(probability)
        self._num_tested[idx] = _KEPT * self._num_tested[idx] + 1
        self._num_accepted[idx] = _KEPT * self._num_accepted[idx] + is_accepted


def _bin_of(probability: float) -> int:
    clipped = min(max(probability, 1e-6), 1 - 1e-6)
    odds = math.log(clipped / (1 - clipped))
    place = (odds + _RANGE) / (2 * _RANGE) * (_NUM_BINS - 1)
    return min(max(round(place), 0), _NUM_BINS - 1)
