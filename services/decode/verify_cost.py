"""How long a step lasts with drafts in it, learned from the steps before. Pure."""

from typing import NamedTuple

# Milliseconds: a step, a stream, a draft token, a thousand tokens of context.
_PRIORS = (5.0, 0.2, 0.2, 0.5)
_UNSURE_OF = (20.0, 1.0, 0.5, 1.0)
# Steps after which an influence that nothing was seen of is as unknown as at the start.
_FORGET_STEPS = 400
_NOISE = 0.1  # of a step's time
# An error counts up to this part of what was expected: a stall of the machine teaches nothing.
_MAX_SURPRISE = 0.5
_NUM_BELIEVED = 3  # first steps, whatever they say
_LEAST = 0.01  # of its prior: nothing that is computed is free


class Shape(NamedTuple):
    """What a step without prompts costs by."""

    num_streams: int
    num_drafts: int  # tokens, of all streams
    num_context_tokens: int  # of all streams


class VerifyCost:
    """
    Seconds as a weighted sum of a step's shape; the weights follow by a Kalman filter.

    Unlike gradient steps it tells influences apart that come together, as drafts and streams do:
    what a draft token adds shows in the steps that differ in it. Kalman, 1960: the weights walk at
    random, slowly, and are seen through steps with noise.
    """

    def __init__(self) -> None:
        self._weights = list(_PRIORS)
        size = len(_PRIORS)
        self._variances = [
            [_UNSURE_OF[i] ** 2 if i == j else 0.0 for j in range(size)] for i in range(size)
        ]
        self._num_seen = 0

    def of_step(self, shape: Shape) -> float:
        """Return the seconds that are expected."""
        return sum(w * x for w, x in zip(self._sane(), _features(shape), strict=True)) / 1000

    @property
    def of_draft(self) -> float:
        """What one draft token adds, in seconds: `r - 1` of the literature, times a step."""
        return self._sane()[2] / 1000

    def saw(self, shape: Shape, seconds: float) -> None:
        """Take in what a step took."""
        features = _features(shape)
        self._forget()
        expected = sum(w * x for w, x in zip(self._weights, features, strict=True))
        error = seconds * 1000 - expected
        if self._num_seen >= _NUM_BELIEVED:
            limit = _MAX_SURPRISE * max(expected, _LEAST)
            error = min(max(error, -limit), limit)
        self._num_seen += 1
        spread = [sum(v * x for v, x in zip(row, features, strict=True)) for row in self._variances]
        noise = (_NOISE * max(expected, 1.0)) ** 2
        total = noise + sum(s * x for s, x in zip(spread, features, strict=True))
        self._weights = [w + s * error / total for w, s in zip(self._weights, spread, strict=True)]
        self._variances = [
            [value - a * b / total for value, b in zip(row, spread, strict=True)]
            for row, a in zip(self._variances, spread, strict=True)
        ]

    def _forget(self) -> None:
        for idx, unsure in enumerate(_UNSURE_OF):
            grown = self._variances[idx][idx] + unsure**2 / _FORGET_STEPS
            self._variances[idx][idx] = min(grown, unsure**2)

    def _sane(self) -> list[float]:
        return [max(w, _LEAST * prior) for w, prior in zip(self._weights, _PRIORS, strict=True)]


def _features(shape: Shape) -> tuple[float, float, float, float]:
    return (1.0, shape.num_streams, shape.num_drafts, shape.num_context_tokens / 1000)
