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
from slipstream.shared.model.constraint import Mask
from slipstream.shared.model.sampling import Sampler
from tests.plain_sampler import Chances, distribution

from . import chi_square

Row = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]
Fields = Mapping[str, Any]  # Any: fields have several types

_SMALL, _LARGE = 64, 49_152  # vocabularies
_MIN_P_VALUE = 1e-4  # of a right sampler
_MAX_P_VALUE = 1e-6  # of a wrong one

_PROMPT = [3, 3, 15, 11]
_OUTPUT = [2, 2, 13, 2, 11, 5]
_EOS = 17
# Fills an output up to any length. It is banned, so that how often it came changes nothing.
_FILLER = 63

_CASES: dict[str, Fields] = {
    "as it is": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 8},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "top_k and top_p": {"top_k": 12, "top_p": 0.8, "temperature": 1.2},
    "top_p and min_p": {"top_p": 0.9, "min_p": 0.06, "temperature": 1.3},
    "all three": {"top_k": 20, "top_p": 0.95, "min_p": 0.03, "temperature": 1.5},
    "repetition": {"repetition_penalty": 1.4, "logit_bias": {_FILLER: -100.0}},
    "presence": {"presence_penalty": 1.0, "logit_bias": {_FILLER: -100.0}},
    "frequency": {"frequency_penalty": 0.5, "logit_bias": {_FILLER: -100.0}},
    "bias": {"logit_bias": {4: 2.0, 2: -1.5, 11: -100.0}},
    "bias and repetition": {
        "repetition_penalty": 0.8,
        "logit_bias": {2: -1.5, 13: 1.0, _FILLER: -100.0},
    },
    "min_tokens": {"min_tokens": 10**6, "stop_token_ids": (15, 7), "logit_bias": {_EOS: 2.0}},
    "constraint": {"temperature": 1.2},
    "constraint and top_p": {"top_p": 0.7},
}
_REMEMBERED = ("repetition", "presence", "frequency", "bias and repetition")


class _Same:
    """A constraint that always allows the same tokens."""

    is_complete = False

    def __init__(self, mask: Mask) -> None:
        self._mask = mask

    def allowed(self) -> Mask:
        return self._mask

    def accept(self, token_id: int) -> None:
        assert self._mask[token_id], "not allowed"


@cache
def _matcher(case: str, size: int) -> _Same | None:
    return _Same(np.arange(size) % 3 == 0) if case.startswith("constraint") else None


@cache
def _row(size: int) -> Row:
    """
    Return logits of a small vocabulary, or of one as large and as peaked as a real one.

    Low ids are likely: what is done to some of them counts. Their logits have both signs.
    """
    random = np.random.default_rng(4)
    if size == _SMALL:
        return (random.normal(0, 1.6, size) - np.arange(size) / 12 - 1).astype(np.float32)
    logits = 2 - 1.4 * np.log(np.arange(1, size + 1)) + random.normal(0, 0.1, size)
    logits[64:] = random.permutation(logits[64:])
    return logits.astype(np.float32)


def _sampler(case: str, size: int, seed: int, num_fillers: int = 0) -> Sampler:
    return Sampler(
        SamplingParameters(seed=seed, **_CASES[case]),
        _PROMPT,
        [*_OUTPUT, *[_FILLER] * num_fillers] if _matcher(case, size) is None else (),
        eos_token_ids=[_EOS],
        matcher=_matcher(case, size),
    )


@cache
def _over_seeds(case: str, size: int) -> Counts:
    # A few per cent of a temperature take many draws to be seen.
    is_plain = _CASES[case].keys() <= {"temperature"}
    num_draws = 1500 if size == _LARGE else 20_000 if is_plain else 6000
    row = _row(size)
    token_ids = [_sampler(case, size, seed).sample(row).token_id for seed in range(num_draws)]
    return np.bincount(token_ids, minlength=size)


def _over_positions(case: str, size: int) -> Counts:
    row, num_draws = _row(size), 1000
    if case in _REMEMBERED:
        # What was drawn would change what comes: each is drawn behind the same.
        samplers: Iterable[Sampler] = (_sampler(case, size, 7, n) for n in range(num_draws))
    else:
        samplers = [_sampler(case, size, 7)] * num_draws
    token_ids = [each.sample(row).token_id for each in samplers]
    return np.bincount(token_ids, minlength=size)


def _distribution(case: str, size: int, **wrong: object) -> Chances:
    """Return the right distribution of a case, or one with something wrong."""
    matcher = _matcher(case, size)
    what: dict[str, Any] = {  # Any: of several types
        "fields": _CASES[case],
        "prompt": _PROMPT,
        "output": _OUTPUT if matcher is None else (),
        "end_ids": [_EOS],
        "allowed": None if matcher is None else matcher.allowed(),
    }
    return distribution(_row(size), **{**what, **wrong})


@pytest.mark.parametrize("size", [_SMALL, _LARGE])
@pytest.mark.parametrize("case", _CASES)
def test_tokens_come_as_often_as_they_should_over_seeds(case: str, size: int) -> None:
    p_value = chi_square.p_value(_over_seeds(case, size), _distribution(case, size))

    assert p_value > _MIN_P_VALUE


@pytest.mark.parametrize("size", [_SMALL, _LARGE])
@pytest.mark.parametrize("case", _CASES)
def test_tokens_come_as_often_as_they_should_over_positions(case: str, size: int) -> None:
    p_value = chi_square.p_value(_over_positions(case, size), _distribution(case, size))

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
        ("presence", {"output": [*_PROMPT, *_OUTPUT]}),
        ("frequency", {"output": sorted({*_OUTPUT})}),
        ("bias", {"fields": {"logit_bias": {4: 2.0, 11: -100.0}}}),
        ("min_tokens", {"end_ids": []}),
        ("min_tokens", {"fields": {"min_tokens": 10**6, "logit_bias": {_EOS: 2.0}}}),
        ("constraint", {"allowed": None}),
    ],
    ids=str,
)
def test_a_distribution_that_is_wrong_by_a_little_is_told(
    case: str, wrong: Mapping[str, Any]
) -> None:
    """The test of the tests above: by their own statistic, from the same draws."""
    counts = _over_seeds(case, _SMALL)

    assert chi_square.p_value(counts, _distribution(case, _SMALL, **wrong)) < _MAX_P_VALUE


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
