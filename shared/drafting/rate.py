"""How often drafts have been accepted lately. Pure."""

KEPT = 0.95  # of what was seen, for each token that is tested since
_PRIOR_TOKENS = 3.0  # that the prior counts for


class Acceptance:
    """The chance that a draft token is accepted, as the last ones that were tested say."""

    def __init__(self, prior: float, kept: float = KEPT) -> None:
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
