"""What a format loses against the reference: scores a position, pooled, with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]

# At most so many positions are resampled as a whole, because neighbours share their past: in int8
# the mean KL of 64 of them varies 4 to 5 times as much as if they were independent, that of 128
# and more 4 to 7 times. Whole windows, 16 of a text, would be few to resample.
BLOCK_LENGTH = 128
_NUM_RESAMPLES = 1000
_SEED = 0
_TAIL = 0.025  # on either side of a 95 % interval
_HIGH_QUANTILE = 0.99
_NUM_ROWS_AT_ONCE = 16  # in float64: what a processor's cache holds, not gigabytes


@dataclass(frozen=True, slots=True)
class Scores:
    """One value a scored position: [positions], or [windows, positions] of a text."""

    reference_nll: Float64s  # -log p of the token that follows
    nll: Float64s
    kl: Float64s  # KL(reference || format)
    is_top1_same: npt.NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Sequence["Scores"]) -> "Scores":
        """Return consecutive positions as one row of them."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def in_windows(self, num_windows: int) -> "Scores":
        """Return the positions as [windows, positions]."""
        arrays = (getattr(self, field.name) for field in fields(self))
        return Scores(*(values.reshape(num_windows, -1) for values in arrays))


@dataclass(frozen=True, slots=True)
class Figure:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The figures of a format."""

    num_tokens: int  # scored positions
    reference_perplexity: float
    perplexity_ratio: Figure  # exp(mean nll - mean nll of the reference)
    mean_kl: Figure
    p99_kl: Figure
    top1_agreement: Figure


def compare(reference: Logits, logits: Logits, targets: Sequence[int]) -> Scores:
    """Score logits [positions, vocabulary]; `targets[i]` is the token that follows row i."""
    assert reference.shape == logits.shape, f"{reference.shape} against {logits.shape}"
    assert len(targets) == len(logits), f"{len(targets)} targets of {len(logits)} rows"
    parts = []
    for first in range(0, len(targets), _NUM_ROWS_AT_ONCE):
        some = slice(first, first + _NUM_ROWS_AT_ONCE)
        parts.append(_compare(reference[some], logits[some], targets[some]))
    return Scores.joined(parts)


def summarize(texts: Sequence[Scores]) -> Accuracy:
    """
    Pool the positions of the texts, [windows, positions] each.

    The texts are the ones that were chosen, so each is resampled within itself.
    """
    pool = _Pool(texts)
    rng = np.random.default_rng(_SEED)
    shapes = [scores.kl.shape for scores in texts]
    resampled = [
        pool.figures(np.concatenate([_draw(shape, rng) for shape in shapes]))
        for _ in range(_NUM_RESAMPLES)
    ]
    values = pool.figures(np.ones(pool.num_positions, np.int64))
    lows, highs = np.quantile(resampled, [_TAIL, 1 - _TAIL], axis=0)
    figures = [Figure(*map(float, figure)) for figure in zip(values, lows, highs, strict=True)]
    return Accuracy(pool.num_positions, pool.reference_perplexity, *figures)


def _compare(reference: Logits, logits: Logits, targets: Sequence[int]) -> Scores:
    expected, found = reference.astype(np.float64), logits.astype(np.float64)
    expected -= expected.max(axis=1, keepdims=True)
    found -= found.max(axis=1, keepdims=True)
    probabilities = np.exp(expected)
    total = probabilities.sum(axis=1)
    # log p is a row of logits minus its log-sum-exp.
    log_total, found_log_total = np.log(total), np.log(np.exp(found).sum(axis=1))
    difference = np.einsum("ij,ij->i", probabilities, expected - found) / total
    rows = np.arange(len(targets))
    return Scores(
        reference_nll=log_total - expected[rows, targets],
        nll=found_log_total - found[rows, targets],
        # Rounding can leave a few 1e-17 below zero, where no divergence is.
        kl=np.maximum(difference - log_total + found_log_total, 0.0),
        is_top1_same=reference.argmax(axis=1) == logits.argmax(axis=1),
    )


class _Pool:
    """All positions, ready to be weighed many times."""

    def __init__(self, texts: Sequence[Scores]) -> None:
        reference_nll = np.concatenate([scores.reference_nll.ravel() for scores in texts])
        nll = np.concatenate([scores.nll.ravel() for scores in texts])
        kl = np.concatenate([scores.kl.ravel() for scores in texts])
        is_same = np.concatenate([scores.is_top1_same.ravel() for scores in texts])
        self.num_positions = len(kl)
        self.reference_perplexity = float(np.exp(reference_nll.mean()))
        self._columns = np.stack([nll - reference_nll, kl, is_same.astype(np.float64)], axis=1)
        self._order = np.argsort(kl)
        self._sorted_kl = kl[self._order]

    def figures(self, weights: npt.NDArray[np.int64]) -> tuple[float, float, float, float]:
        """Return the figures in the order of `Accuracy`, each position counted so many times."""
        cumulative = np.cumsum(weights[self._order])
        num_positions = cumulative[-1]
        nll_increase, mean_kl, top1_agreement = weights @ self._columns / num_positions
        high = np.searchsorted(cumulative, _HIGH_QUANTILE * num_positions)
        return np.exp(nll_increase), mean_kl, self._sorted_kl[high], top1_agreement


def _draw(shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return how often each position is drawn when blocks are, with replacement."""
    num_windows, num_positions = shape
    num_blocks = -(-num_positions // BLOCK_LENGTH)
    total = num_windows * num_blocks
    counts = rng.multinomial(total, np.full(total, 1 / total)).reshape(num_windows, num_blocks)
    # Of one length as nearly as can be, so that every drawing has the same weight.
    block_of = np.arange(num_positions) * num_blocks // num_positions
    return counts[:, block_of].ravel()
