"""Scores of positions against plain arithmetic, and intervals that hold what they promise."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.shared.measure import accuracy
from slipstream.shared.measure.accuracy import Figure, Scores, compare, summarize


def logits_of(*rows: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return logits of these probabilities, each row shifted by another constant."""
    return np.array(
        [[math.log(p) + 3.0 * i for p in row] for i, row in enumerate(rows)], np.float32
    )


def scores_of(
    kl: npt.NDArray[np.float64], increase: npt.NDArray[np.float64] | float = 0.0
) -> Scores:
    """Return scores [windows, positions] with this divergence and loss."""
    reference_nll = np.full(kl.shape, 2.0)
    return Scores(reference_nll, reference_nll + increase, kl, np.ones(kl.shape, np.bool_))


def naive(
    reference: Sequence[float], logits: Sequence[float], target: int
) -> tuple[float, float, float]:
    """Return nll of the reference, nll and divergence of one row, term by term."""
    p = [math.exp(each) / math.fsum(map(math.exp, reference)) for each in reference]
    q = [math.exp(each) / math.fsum(map(math.exp, logits)) for each in logits]
    terms = [one * (math.log(one) - math.log(other)) for one, other in zip(p, q, strict=True)]
    return -math.log(p[target]), -math.log(q[target]), math.fsum(terms)


def test_scores_are_what_the_definitions_say() -> None:
    """Over more rows than are computed at once."""
    rng = np.random.default_rng(0)
    reference = rng.normal(0, 3, (50, 37)).astype(np.float32)
    logits = reference + rng.normal(0, 0.5, reference.shape).astype(np.float32)
    targets = rng.integers(0, 37, 50).tolist()
    expected = [
        naive(*row) for row in zip(reference.tolist(), logits.tolist(), targets, strict=True)
    ]

    found = compare(reference, logits, targets)

    shown = np.stack([found.reference_nll, found.nll, found.kl], axis=1)
    np.testing.assert_allclose(shown, expected, rtol=1e-10)
    same = [
        one.index(max(one)) == other.index(max(other))
        for one, other in zip(reference.tolist(), logits.tolist(), strict=True)
    ]
    assert same == found.is_top1_same.tolist()
    assert {True, False} == set(same)


def test_a_small_case_by_hand() -> None:
    """Twice the perplexity on the first token, half of it on the second; ln 2 / 4 apart."""
    reference = logits_of((0.5, 0.25, 0.25), (0.5, 0.25, 0.25), (0.2, 0.7, 0.1))
    logits = logits_of((0.25, 0.5, 0.25), (0.25, 0.5, 0.25), (0.2, 0.7, 0.1))

    found = compare(reference, logits, [0, 1, 2])

    np.testing.assert_allclose(found.reference_nll, np.log([2, 4, 10]), rtol=1e-6)
    np.testing.assert_allclose(found.nll, np.log([4, 2, 10]), rtol=1e-6)
    np.testing.assert_allclose(found.kl, np.array([1, 1, 0]) * math.log(2) / 4, atol=1e-6)
    assert [False, False, True] == found.is_top1_same.tolist()


def test_huge_logits_overflow_nothing() -> None:
    reference = np.array([[3000.0, 2999.0], [-3000.0, -3001.0]], np.float32)

    found = compare(reference, reference[:, ::-1], [0, 0])

    expected = (math.e - 1) / (math.e + 1)  # of (p, 1 - p) against (1 - p, p), one apart
    np.testing.assert_allclose(found.kl, [expected] * 2, rtol=1e-12)


def test_equal_logits_lose_exactly_nothing() -> None:
    logits = np.random.default_rng(1).normal(0, 5, (300, 101)).astype(np.float32)
    scores = compare(logits, logits.copy(), [0] * 300)

    found = summarize([scores.in_windows(3)])

    assert Figure(1.0, 1.0, 1.0) == found.perplexity_ratio
    assert Figure(0.0, 0.0, 0.0) == found.mean_kl
    assert Figure(0.0, 0.0, 0.0) == found.p99_kl
    assert Figure(1.0, 1.0, 1.0) == found.top1_agreement
    assert 300 == found.num_tokens


def test_figures_pool_positions() -> None:
    """A long text weighs more than a short one."""
    rng = np.random.default_rng(2)
    texts = [
        scores_of(rng.exponential(1.0, (3, 200)), 0.03),
        scores_of(rng.exponential(9.0, (1, 200)), -0.01),
    ]
    together = np.concatenate([scores.kl.ravel() for scores in texts])

    found = summarize(texts)

    assert 800 == found.num_tokens
    assert math.exp(2) == pytest.approx(found.reference_perplexity)
    assert math.exp((3 * 0.03 - 0.01) / 4) == pytest.approx(found.perplexity_ratio.value)
    assert together.mean() == pytest.approx(found.mean_kl.value)
    assert np.quantile(together, 0.99, method="inverted_cdf") == found.p99_kl.value


def test_the_same_scores_give_the_same_interval() -> None:
    scores = scores_of(np.random.default_rng(3).exponential(1.0, (4, 300)))

    assert summarize([scores]) == summarize([scores])


def test_texts_were_chosen_and_are_not_resampled() -> None:
    """Two texts that differ, each the same throughout: nothing is uncertain."""
    texts = [scores_of(np.full((4, 200), level)) for level in (1.0, 3.0)]

    assert Figure(2.0, 2.0, 2.0) == summarize(texts).mean_kl


def test_an_interval_holds_the_truth_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of text whose level lasts for 128 positions: single ones would claim too much."""
    monkeypatch.setattr(accuracy, "_NUM_RESAMPLES", 200)
    rng = np.random.default_rng(4)
    num_texts, num_windows, num_levels = 100, 10, 4
    num_held = 0
    for _ in range(num_texts):
        levels = np.repeat(rng.uniform(0.0, 2.0, (num_windows, num_levels)), 128, axis=1)
        mean_kl = summarize([scores_of(levels * rng.uniform(0.5, 1.5, levels.shape))]).mean_kl
        num_held += mean_kl.low <= 1.0 <= mean_kl.high

    assert 0.88 <= num_held / num_texts <= 0.99
