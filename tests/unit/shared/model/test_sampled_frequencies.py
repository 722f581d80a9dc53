"""
Tokens come as often as the rules say, over seeds and over positions, and independently.

Seeds are fixed: a right sampler passes always. Limits lie so far apart that it would have passed
with nearly any others, and that what is wrong by a little fails.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.sampling import Sampler
from tests.plain_sampler import distribution

from . import chi_square
from .sampling_cases import (
    CASES,
    EOS,
    LARGE,
    OUTPUT,
    PROMPT,
    SMALL,
    distribution_of,
    row_of,
    sampler_of,
)

Counts = npt.NDArray[np.int64]

_MIN_P_VALUE = 1e-4  # of a right sampler
_MAX_P_VALUE = 1e-6  # of a wrong one

_REMEMBERED = ("repetition", "presence", "frequency", "bias and repetition")


@cache
def _over_seeds(case: str, size: int) -> Counts:
    # A few per cent of a temperature take many draws to be seen.
    is_plain = CASES[case].keys() <= {"temperature"}
    num_draws = 1500 if size == LARGE else 20_000 if is_plain else 6000
    row = row_of(size)
    token_ids = [sampler_of(case, size, seed).sample(row).token_id for seed in range(num_draws)]
    return np.bincount(token_ids, minlength=size)


def _over_positions(case: str, size: int) -> Counts:
    row, num_draws = row_of(size), 1000
    if case in _REMEMBERED:
        # What was drawn would change what comes: each is drawn behind the same.
        samplers: Iterable[Sampler] = (sampler_of(case, size, 7, n) for n in range(num_draws))
    else:
        samplers = [sampler_of(case, size, 7)] * num_draws
    token_ids = [each.sample(row).token_id for each in samplers]
    return np.bincount(token_ids, minlength=size)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("case", CASES)
def test_tokens_come_as_often_as_they_should_over_seeds(case: str, size: int) -> None:
    p_value = chi_square.p_value(_over_seeds(case, size), distribution_of(case, size))

    assert p_value > _MIN_P_VALUE


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("case", CASES)
def test_tokens_come_as_often_as_they_should_over_positions(case: str, size: int) -> None:
    p_value = chi_square.p_value(_over_positions(case, size), distribution_of(case, size))

    assert p_value > _MIN_P_VALUE


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        ("as it is", {"fields": {"temperature": 1.05}}),
        ("cold", {"fields": {"temperature": 0.63}}),
        ("hot", {"fields": {"temperature": 1.615}}),
        ("top_k", {"fields": {"top_k": 7}}),
        ("top_k", {"fields": {"top_k": 9}}),
        ("top_p", {"fields": {"top_p": 0.785}}),
        ("top_p", {"fields": {"top_p": 0.815}}),
        ("min_p", {"fields": {"min_p": 0.04}}),
        ("min_p", {"fields": {"min_p": 0.052}}),
        # The nucleus of all tokens, not of the twelve; min_p left out; top_p left out.
        ("top_k and top_p", {"fields": {"top_p": 0.8, "temperature": 1.2}}),
        ("top_p and min_p", {"fields": {"top_p": 0.9, "temperature": 1.3}}),
        ("all three", {"fields": {"top_k": 20, "min_p": 0.03, "temperature": 1.5}}),
        ("repetition", {"prompt": []}),
        ("repetition", {"output": []}),
        ("presence", {"output": [*PROMPT, *OUTPUT]}),
        ("frequency", {"output": sorted({*OUTPUT})}),
        ("bias", {"fields": {"logit_bias": {4: 2.0, 11: -100.0}}}),
        ("min_tokens", {"end_ids": []}),
        ("min_tokens", {"fields": {"min_tokens": 10**6, "logit_bias": {EOS: 2.0}}}),
        ("constraint", {"allowed": None}),
    ],
    ids=str,
)
def test_a_distribution_that_is_wrong_by_a_little_is_told(
    case: str, wrong: Mapping[str, Any]
) -> None:
    """The test of the tests above: by their own statistic, from the same draws."""
    counts = _over_seeds(case, SMALL)

    assert chi_square.p_value(counts, distribution_of(case, SMALL, **wrong)) < _MAX_P_VALUE


_NUM_PAIRS = 8000
_FEW = np.log(np.array([0.3, 0.22, 0.18, 0.12, 0.1, 0.05, 0.03], np.float32))


def _stream(seed: int, length: int) -> npt.NDArray[np.int64]:
    """Return the tokens of one seed, each drawn from the same few."""
    sampler = Sampler(SamplingParameters(seed=seed), [])
    return np.array([sampler.sample(_FEW).token_id for _ in range(length)])


def _pair_p_value(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> float:
    """Compare how often pairs come with the products of their tokens' probabilities."""
    chances = distribution(_FEW, {})
    counts = np.bincount(first * len(_FEW) + second, minlength=len(_FEW) ** 2)
    return chi_square.p_value(counts, np.outer(chances, chances).ravel())


@pytest.mark.parametrize("distance", [1, 2, 4, 32])
def test_positions_of_one_seed_are_independent_draws(distance: int) -> None:
    pairs = _stream(7, 2 * _NUM_PAIRS).reshape(-1, 2, distance)

    assert _pair_p_value(pairs[:, 0].ravel(), pairs[:, 1].ravel()) > _MIN_P_VALUE


@pytest.mark.parametrize("distance", [1, 2, 2**32, 2**62])
@pytest.mark.parametrize("shift", [0, 1])
def test_seeds_are_independent_draws(distance: int, shift: int) -> None:
    """Seeds that differ in a bit or two, at the same position and at neighbouring ones."""
    seeds = range(0, 4 * _NUM_PAIRS, 4)
    first = np.array([_stream(seed, 1)[0] for seed in seeds])
    second = np.array([_stream(seed + distance, 1 + shift)[shift] for seed in seeds])

    assert _pair_p_value(first, second) > _MIN_P_VALUE


def test_draws_that_depend_on_one_another_a_little_are_told() -> None:
    """One in six repeats the one before it."""
    first, second = _stream(7, 2 * _NUM_PAIRS).reshape(-1, 2).T.copy()
    second[::6] = first[::6]

    assert _pair_p_value(first, second) < _MAX_P_VALUE


@pytest.mark.parametrize(
    ("statistic", "num_degrees", "expected"),
    [(3.841, 1, 0.05), (18.307, 10, 0.05), (29.588, 10, 0.001), (149.449, 100, 0.001)],
)
def test_the_tail_is_that_of_the_tables(
    statistic: float, num_degrees: int, expected: float
) -> None:
    assert expected == pytest.approx(chi_square.upper_tail(statistic, num_degrees), rel=0.1)
