"""What becomes of one draft token: taken, or replaced from what is missing to the target."""

import math

import numpy as np
import pytest

from slipstream.shared.model import acceptance
from slipstream.shared.model.acceptance import Distribution, DraftToken, residual, take_or_replace
from slipstream.shared.model.noise import gumbel_noise, uniform_noise

_TARGET = {2: 0.5, 5: 0.3, 9: 0.2}


def _of(probabilities: dict[int, float]) -> Distribution:
    return Distribution(np.array(list(probabilities)), np.array(list(probabilities.values())))


def _results(target: Distribution, draft: DraftToken, num_seeds: int = 500) -> set[int]:
    return {take_or_replace(target, draft, seed, 4) for seed in range(num_seeds)}


def _probabilities(distribution: Distribution) -> dict[int, float]:
    return {
        token_id: float(probability)
        for token_id, probability in zip(
            distribution.token_ids.tolist(), distribution.probabilities, strict=True
        )
    }


@pytest.mark.parametrize("token_id", [0, 3, 7, 10, 2**31])
def test_a_token_that_cannot_come_is_never_taken(token_id: int) -> None:
    """Truncated, banned, or outside the vocabulary."""
    assert {2, 5, 9} == _results(_of(_TARGET), DraftToken(token_id))
    drawn = DraftToken(token_id, _of({token_id: 1.0}))

    assert {2, 5, 9} == _results(_of(_TARGET), drawn)


def test_a_token_drawn_from_the_target_itself_is_always_taken() -> None:
    target = _of(_TARGET)

    assert all({each} == _results(target, DraftToken(each, target)) for each in _TARGET)


def test_a_token_that_the_draft_undervalues_is_always_taken() -> None:
    assert {5} == _results(_of(_TARGET), DraftToken(5, _of({2: 0.8, 5: 0.2})))


def test_the_only_token_there_is_is_taken_or_comes_in_its_place() -> None:
    only = _of({7: 1.0})

    assert {7} == _results(only, DraftToken(7))
    assert {7} == _results(only, DraftToken(3))
    assert {7} == _results(only, DraftToken(3, _of({3: 0.5, 7: 0.5})))


@pytest.mark.parametrize(
    ("drawn_from", "expected"),
    [
        # A token that was looked up: all others in proportion.
        ({5: 1.0}, {2: 5 / 7, 5: 0.0, 9: 2 / 7}),
        # What the draft has more of is left out, not subtracted from the others.
        ({2: 0.6, 5: 0.1, 9: 0.3}, {2: 0.0, 5: 1.0, 9: 0.0}),
        ({2: 0.4, 5: 0.2, 9: 0.4}, {2: 0.5, 5: 0.5, 9: 0.0}),
        # Nothing in common, below, between and above the target's tokens: it is all missing.
        ({0: 0.2, 3: 0.3, 8: 0.1, 11: 0.4}, _TARGET),
        ({0: 0.2, 9: 0.1, 40: 0.7}, {2: 5 / 9, 5: 3 / 9, 9: 1 / 9}),
    ],
)
def test_the_residual_is_what_is_missing_to_the_target(
    drawn_from: dict[int, float], expected: dict[int, float]
) -> None:
    found = _probabilities(residual(_of(_TARGET), _of(drawn_from)))

    assert pytest.approx(expected) == found


def test_the_target_stands_in_for_a_residual_of_nothing() -> None:
    """By rounding both may be the same, or the draft everywhere a little above."""
    target = _of(_TARGET)
    above = Distribution(target.token_ids, np.nextafter(target.probabilities, 2.0))

    assert _TARGET == _probabilities(residual(target, target))
    assert _TARGET == _probabilities(residual(target, above))


@pytest.mark.parametrize("claimed", [0.0, -0.5, math.nan])
def test_a_token_that_its_own_distribution_rules_out_counts_as_looked_up(claimed: float) -> None:
    target = _of(_TARGET)
    wrong = DraftToken(5, _of({2: 1.0, 5: claimed}))
    looked_up = DraftToken(5)

    for seed in range(200):
        expected = take_or_replace(target, looked_up, seed, 0)

        assert expected == take_or_replace(target, wrong, seed, 0)


def test_numbers_that_are_none_leave_the_target() -> None:
    """Nobody can say what is missing: still only tokens of the target come."""
    target = _of(_TARGET)
    draft = DraftToken(5, Distribution(np.array([2, 5]), np.array([math.nan, 0.9])))

    assert _results(target, draft) == set(_TARGET)


def test_noise_of_another_position_or_seed_decides_otherwise_and_its_own_alike() -> None:
    target, draft = _of(_TARGET), DraftToken(2)
    first = [take_or_replace(target, draft, seed, 0) for seed in range(64)]

    assert first == [take_or_replace(target, draft, seed, 0) for seed in range(64)]
    assert first != [take_or_replace(target, draft, seed, 1) for seed in range(64)]
    assert first != [take_or_replace(target, draft, seed, 0) for seed in range(64, 128)]


@pytest.mark.parametrize(
    ("uniform", "expected"),
    [(2.0**-53, 4), (0.24999, 4), (0.25, 6), (0.74999, 6), (0.75, 8), (1 - 2.0**-53, 8)],
)
def test_a_draw_goes_as_far_as_the_share_says_and_not_beyond(uniform: float, expected: int) -> None:
    """Tokens that can't come are passed over, also the first and the last."""
    among = _of({3: 0.0, 4: 0.25, 5: 0.0, 6: 0.5, 8: 0.25, 9: 0.0})

    assert expected == among.draw(uniform)


def test_a_draw_at_the_very_end_does_not_fall_off() -> None:
    """There rounding may give a share of one; probabilities don't add up to exactly one."""
    among = Distribution(np.arange(11), np.append(np.full(10, 0.1), 0.0))

    assert 9 == among.draw(1 - 2.0**-53)
    assert 9 == among.draw(1.0)


@pytest.mark.parametrize("seed", [0, -1, 7, 2**63 - 1, -(2**63)])
def test_a_number_of_a_token_is_what_its_gumbel_noise_is_made_of(seed: int) -> None:
    """One generator: numbers that no token has give noise that no token has."""
    uniform = [uniform_noise(seed, 5, token_id) for token_id in (0, 1, 49_151)]
    expected = gumbel_noise(seed, 5, np.array([0, 1, 49_151]))

    assert pytest.approx(expected.tolist()) == [-math.log(-math.log(each)) for each in uniform]


def test_noise_is_the_same_on_every_machine() -> None:
    """A replay on another host decides as before."""
    numbers = (acceptance._NUMBER_OF_ACCEPTANCE, acceptance._NUMBER_OF_REPLACEMENT)

    assert numbers == (2**32, 2**32 + 1)
    expected = [0.2797435349183278, 0.32456267633528857]

    assert expected == [uniform_noise(42, 17, each) for each in numbers]
