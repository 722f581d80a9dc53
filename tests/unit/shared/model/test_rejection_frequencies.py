"""
In rejection mode tokens come as often as without drafts, whatever the drafts are.

Seeds are fixed, and limits are those of `test_sampled_frequencies.py`: a right sampler passes
always, and with nearly any other seeds; what is wrong by a little fails.
"""

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model import acceptance
from slipstream.shared.model.acceptance import Distribution, DraftToken, take_or_replace
from slipstream.shared.model.noise import gumbel_noise
from slipstream.shared.model.sampling import Sampler
from tests.plain_sampler import Chances, distribution

from . import chi_square
from .sampling_cases import CASES, LARGE, SMALL, distribution_of, row_of, sampler_of

Counts = npt.NDArray[np.int64]
TokenIds = npt.NDArray[np.int64]

_MIN_P_VALUE = 1e-4  # of a right sampler
_MAX_P_VALUE = 1e-6  # of a wrong one
_MAX_DEVIATION = 4.5  # of a right rate of acceptance, in standard deviations

_NUM_DRAWS = 6000


def _known(chances: Chances) -> Distribution:
    token_ids = np.flatnonzero(chances)
    return Distribution(token_ids, chances[token_ids] / chances.sum())


def _certain(token_id: int) -> Chances:
    chances = np.zeros(SMALL)
    chances[token_id] = 1.0
    return chances


@cache
def _drafts(case: str) -> dict[str, Chances]:
    """Return what a token may be drawn from; the certain ones are as good as looked up."""
    target = distribution_of(case, SMALL)
    ranked = np.argsort(-target, kind="stable")
    random = np.random.default_rng(1)
    return {
        "the likeliest": _certain(int(ranked[0])),
        "the third": _certain(int(ranked[2])),
        "good": target * np.exp(random.normal(0, 0.5, SMALL)),
        "bad": target[::-1].copy(),
        "uniform": np.ones(SMALL),
        "truncated": np.where(target >= target[ranked[2]], target, 0.0),
        "elsewhere": np.where(target == target.min(), 1.0, 0.0),
        "the same": target,
    }


_DRAFTS = tuple(_drafts("top_k"))


def _proposed(drawn_from: Distribution, num_draws: int) -> list[int]:
    random = np.random.default_rng(2)
    return random.choice(drawn_from.token_ids, num_draws, p=drawn_from.probabilities).tolist()


def _told(case: str, draft: str, *, over_positions: bool = False) -> tuple[list[int], list[int]]:
    """Return what was proposed, and the tokens that came."""
    target, drawn_from = _known(distribution_of(case, SMALL)), _known(_drafts(case)[draft])
    proposed = _proposed(drawn_from, _NUM_DRAWS)
    came = [
        take_or_replace(target, DraftToken(token_id, drawn_from), seed, position)
        for token_id, (seed, position) in zip(proposed, _places(over_positions), strict=True)
    ]
    return proposed, came


def _places(over_positions: bool) -> Iterable[tuple[int, int]]:
    return ((7, n) if over_positions else (n, 3) for n in range(_NUM_DRAWS))


@pytest.mark.parametrize("over_positions", [False, True], ids=["seeds", "positions"])
@pytest.mark.parametrize("draft", _DRAFTS)
@pytest.mark.parametrize("case", ["as it is", "top_k"])
def test_tokens_come_as_often_as_the_target_says(
    case: str, draft: str, *, over_positions: bool
) -> None:
    _, came = _told(case, draft, over_positions=over_positions)
    counts = np.bincount(came, minlength=SMALL)

    assert chi_square.p_value(counts, distribution_of(case, SMALL)) > _MIN_P_VALUE


@pytest.mark.parametrize("draft", _DRAFTS)
@pytest.mark.parametrize("case", ["as it is", "top_k"])
def test_drafts_are_taken_as_often_as_both_distributions_agree(case: str, draft: str) -> None:
    """The sum of min(p, q), which no other rule without loss exceeds."""
    chances = _drafts(case)[draft]
    expected = float(np.minimum(distribution_of(case, SMALL), chances / chances.sum()).sum())
    proposed, came = _told(case, draft)
    num_taken = np.count_nonzero(np.array(proposed) == np.array(came))
    deviation = (expected * (1 - expected) * _NUM_DRAWS) ** 0.5

    assert num_taken == pytest.approx(
        expected * _NUM_DRAWS, abs=_MAX_DEVIATION * deviation + 1e-6 * _NUM_DRAWS
    )


def _forgets_to_subtract(target: Distribution, drawn_from: Distribution) -> Distribution:
    return target


def _takes_what_is_too_much_too(target: Distribution, drawn_from: Distribution) -> Distribution:
    missing = [
        abs(probability - drawn_from.of(token_id))
        for token_id, probability in zip(
            target.token_ids.tolist(), target.probabilities.tolist(), strict=True
        )
    ]
    return Distribution(target.token_ids, np.array(missing))


@pytest.mark.parametrize("draft", ["the likeliest", "good", "bad", "uniform"])
@pytest.mark.parametrize("wrong", [_forgets_to_subtract, _takes_what_is_too_much_too])
def test_a_wrong_residual_is_told(
    draft: str, wrong: Callable[..., Distribution], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the tests above: by their own statistic, from the same draws."""
    monkeypatch.setattr(acceptance, "residual", wrong)
    _, came = _told("as it is", draft)
    counts = np.bincount(came, minlength=SMALL)

    assert chi_square.p_value(counts, distribution_of("as it is", SMALL)) < _MAX_P_VALUE


def test_one_noise_for_both_decisions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "_NUMBER_OF_REPLACEMENT", acceptance._NUMBER_OF_ACCEPTANCE)
    _, came = _told("as it is", "the likeliest")
    counts = np.bincount(came, minlength=SMALL)

    assert chi_square.p_value(counts, distribution_of("as it is", SMALL)) < _MAX_P_VALUE


def test_a_draft_that_hides_a_little_of_what_it_draws_from_is_told() -> None:
    target = _known(distribution_of("as it is", SMALL))
    drawn_from = _known(_drafts("as it is")["good"])
    claimed = _known(_drafts("as it is")["good"] ** 0.8)
    came = [
        take_or_replace(target, DraftToken(token_id, claimed), seed, 3)
        for seed, token_id in enumerate(_proposed(drawn_from, _NUM_DRAWS))
    ]
    counts = np.bincount(came, minlength=SMALL)

    assert chi_square.p_value(counts, distribution_of("as it is", SMALL)) < _MAX_P_VALUE


def _looked_up(case: str, size: int, num_draws: int) -> list[DraftToken]:
    """Return drafts of all sorts: the likeliest two, and any others, most of which can't come."""
    likely = np.argsort(-distribution_of(case, size))[:2]
    random = np.random.default_rng(3)
    anywhere = random.integers(0, size, num_draws)
    which = random.integers(0, 3, num_draws)
    return [
        DraftToken(int((*likely, other)[idx])) for idx, other in zip(which, anywhere, strict=True)
    ]


def _drawn(size: int, num_draws: int) -> list[DraftToken]:
    """Return drafts by a model that is a little off, truncates, and knows no penalties or masks."""
    random = np.random.default_rng(5)
    row = row_of(size) + random.normal(0, 0.5, size).astype(np.float32)
    drawn_from = _known(distribution(row, {"temperature": 1.1, "top_k": 24}))
    return [DraftToken(each, drawn_from) for each in _proposed(drawn_from, num_draws)]


def _sampled(case: str, size: int, drafts: list[DraftToken]) -> Counts:
    row = row_of(size)
    token_ids = [
        sampler_of(case, size, seed, speculation_mode="rejection").sample(row, draft=draft).token_id
        for seed, draft in enumerate(drafts)
    ]
    return np.bincount(token_ids, minlength=size)


@pytest.mark.parametrize("kind", ["looked up", "drawn"])
@pytest.mark.parametrize("case", CASES)
def test_the_target_is_what_all_rules_of_a_request_leave(case: str, kind: str) -> None:
    drafts = _looked_up(case, SMALL, 2000) if kind == "looked up" else _drawn(SMALL, 2000)
    counts = _sampled(case, SMALL, drafts)

    assert chi_square.p_value(counts, distribution_of(case, SMALL)) > _MIN_P_VALUE


@pytest.mark.parametrize("kind", ["looked up", "drawn"])
@pytest.mark.parametrize("case", ["as it is", "top_p", "min_p"])
def test_a_large_vocabulary_is_no_other(case: str, kind: str) -> None:
    drafts = _looked_up(case, LARGE, 500) if kind == "looked up" else _drawn(LARGE, 500)
    counts = _sampled(case, LARGE, drafts)

    assert chi_square.p_value(counts, distribution_of(case, LARGE)) > _MIN_P_VALUE


@pytest.mark.parametrize(
    ("case", "wrong"), [("top_p", "as it is"), ("top_k", "top_p"), ("repetition", "as it is")]
)
def test_a_target_without_the_rules_of_the_request_is_told(case: str, wrong: str) -> None:
    counts = _sampled(wrong, SMALL, _drawn(SMALL, 3000))

    assert chi_square.p_value(counts, distribution_of(case, SMALL)) < _MAX_P_VALUE


_FEW = 5
_PAIR_FIELDS = {"temperature": 0.9, "top_p": 0.92, "frequency_penalty": 0.7}
_NUM_PAIRS = 8000


def _row_behind(token_id: int | None) -> npt.NDArray[np.float32]:
    """Return the logits of a model that looks at one token."""
    random = np.random.default_rng(20 if token_id is None else token_id)
    return random.normal(0, 1, _FEW).astype(np.float32)


def _of_draft(token_id: int | None) -> Distribution:
    """Return what a bad draft makes of the same, without truncation and penalty."""
    return _known(distribution(-_row_behind(token_id), {}))


def _drawn_with_noise_of_the_request(seed: int, position: int, among: Distribution) -> int:
    noise = gumbel_noise(seed, position, among.token_ids)
    return int(among.token_ids[(np.log(among.probabilities) + noise).argmax()])


def _pair(seed: int) -> tuple[int, int]:
    """Return two tokens, each behind a draft that uses the noise of the request too."""
    parameters = SamplingParameters(seed=seed, speculation_mode="rejection", **_PAIR_FIELDS)
    sampler = Sampler(parameters, [])
    output: list[int] = []
    for position in range(2):
        before = output[-1] if output else None
        drawn_from = _of_draft(before)
        token_id = _drawn_with_noise_of_the_request(seed, position, drawn_from)
        draft = DraftToken(token_id, drawn_from)
        output.append(sampler.sample(_row_behind(before), draft=draft).token_id)
    return output[0], output[1]


@cache
def _pairs() -> Counts:
    pairs = [_pair(seed) for seed in range(_NUM_PAIRS)]
    return np.bincount([first * _FEW + second for first, second in pairs], minlength=_FEW**2)


def _chances_of_pairs(fields: dict[str, float]) -> Chances:
    first = distribution(_row_behind(None), fields)
    seconds = [distribution(_row_behind(each), fields, [], [each]) for each in range(_FEW)]
    return np.concatenate([p * second for p, second in zip(first, seconds, strict=True)])


def test_two_tokens_in_a_row_come_as_often_together_as_they_should() -> None:
    """Each position has its penalties, and its draft may share the noise that tokens have."""
    assert chi_square.p_value(_pairs(), _chances_of_pairs(_PAIR_FIELDS)) > _MIN_P_VALUE


def test_half_a_penalty_for_the_token_before_is_told() -> None:
    wrong = _PAIR_FIELDS | {"frequency_penalty": 0.35}

    assert chi_square.p_value(_pairs(), _chances_of_pairs(wrong)) < _MAX_P_VALUE
