"""How long a step will last, learned from the steps before it. Pure: seconds come in as values."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.shared.model.runner import SequenceRows

# The part of an error by which the weights are moved, at least. Steps come by the hundred a second.
_LEARNED = 0.25
# An error counts up to this part of what was expected: a stall of the machine teaches nothing.
_MAX_SURPRISE = 0.5
# So many first steps are believed whatever they say: priors are of another machine and model.
_NUM_BELIEVED = 3


class Streams(NamedTuple):
    """The rows of running streams in a step: decoded tokens and their drafts."""

    num_rows: int
    num_context_tokens: int  # that the rows attend to, over all sequences


class Prompts(NamedTuple):
    """The rows of prompts in a step."""

    num_rows: int
    num_pairs: float  # (row, position that it attends to)


NO_STREAMS = Streams(0, 0)


class LinearCost:
    """
    Seconds as a weighted sum of what a step has.

    Learned by normalized least mean squares: each step moves the weights along its own features,
    in units of `scales`, so that directions which the steps don't show stay as they are.
    """

    def __init__(self, priors: Sequence[float], scales: Sequence[float]) -> None:
        self.weights = list(priors)
        self._num_learned = 0
        self._scales = list(scales)

    def predict(self, features: Sequence[float]) -> float:
        """Return the seconds that are expected."""
        return sum(w * x for w, x in zip(self.weights, features, strict=True))

    def learn(self, features: Sequence[float], seconds: float) -> None:
        """Take in what a step took. Weights stay positive: nothing that is computed is free."""
        expected = self.predict(features)
        error = seconds - expected
        if self._num_learned >= _NUM_BELIEVED:
            limit = _MAX_SURPRISE * expected
            error = min(max(error, -limit), limit)
        self._num_learned += 1
        learned = max(_LEARNED, 1 / self._num_learned)
        scaled = [x / scale for x, scale in zip(features, self._scales, strict=True)]
        length = sum(x * x for x in scaled)
        for idx, (x, scale) in enumerate(zip(scaled, self._scales, strict=True)):
            moved = self.weights[idx] + learned * error * x / (length * scale)
            self.weights[idx] = max(moved, self.weights[idx] / 2)


class Priors(NamedTuple):
    """Seconds before any step was seen; the defaults are a small model's on two cores."""

    streams: tuple[float, float, float] = (5e-3, 2e-4, 5e-7)  # a step, a row, a token of context
    beside: tuple[float, float] = (1.3e-4, 1.3e-7)  # a row, a pair
    alone: tuple[float, float, float] = (5e-3, 1.3e-4, 1.3e-7)  # a step, a row, a pair


PRIORS = Priors()


class StepCost:
    """
    The cost of streams, and of prompts that come on top of them or are alone.

    Streams are learned from steps without prompts, so that a change of the one is never taken for
    a change of the other.
    """

    def __init__(self, priors: Priors = PRIORS) -> None:
        self._streams = LinearCost(priors.streams, (1, 32, 16_384))
        self._beside = LinearCost(priors.beside, (128, 131_072))
        self._alone = LinearCost(priors.alone, (1, 512, 524_288))

    def of_streams(self, streams: Streams) -> float:
        """Return how long a step of streams alone will last."""
        return self._streams.predict((1, *streams))

    def of_prompts(self, prompts: Prompts, *, is_alone: bool) -> float:
        """Return what prompts add to a step with streams, or how long a step without will last."""
        if is_alone:
            return self._alone.predict((1, *prompts))
        return self._beside.predict(prompts)

    def max_num_rows(
        self, seconds: float, num_computed_tokens: int, *, is_first_alone: bool
    ) -> int:
        """
        Return how many rows of a prompt fit into some time, behind its computed tokens.

        `is_first_alone`: the step has nothing else yet, so that its fixed cost counts.
        """
        fixed, a_row, a_pair = (0.0, *self._beside.weights)
        if is_first_alone:
            fixed, a_row, a_pair = self._alone.weights
        left = seconds - fixed
        if left <= 0:
            return 0
        # rows * a_row + (rows * computed + rows^2 / 2) * a_pair = left
        slope = a_row + a_pair * num_computed_tokens
        return int(2 * left / (slope + math.sqrt(slope * slope + 2 * a_pair * left)))

    def learn(self, streams: Streams, prompts: Prompts, seconds: float) -> None:
        """Take in what a step took."""
        if prompts.num_rows == 0:
            self._streams.learn((1, *streams), seconds)
        elif streams.num_rows == 0:
            self._alone.learn((1, *prompts), seconds)
        else:
            self._beside.learn(prompts, max(0.0, seconds - self.of_streams(streams)))


def streams_in(rows: Sequence[SequenceRows]) -> Streams:
    """Return what the rows of streams are to a step."""
    return Streams(
        sum(each.num_rows for each in rows), sum(each.num_rows * each.context_len for each in rows)
    )


def prompts_in(rows: Sequence[SequenceRows]) -> Prompts:
    """Return what the rows of prompts are to a step."""
    return Prompts(
        sum(each.num_rows for each in rows),
        sum(num_pairs(each.num_computed_tokens, each.num_rows) for each in rows),
    )


def num_pairs(num_computed_tokens: int, num_rows: int) -> float:
    """Return how many positions the rows of a prompt attend to, all together."""
    return num_rows * (num_computed_tokens + num_rows / 2)
