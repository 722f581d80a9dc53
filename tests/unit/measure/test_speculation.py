"""The formula of what speculation gains, against values worked out by hand and by chance."""

import random
from dataclasses import replace

import pytest

from slipstream.shared.measure.speculation import (
    Drafting,
    StepRatios,
    expected_tokens,
    predicted_speedup,
    ratio_with_drafts,
    total,
)
from slipstream.shared.messages.common import Usage

FREE = StepRatios([(4.0, 1.0)])
# 40 steps, of which 20 verified 4 drafts each.
OUTPUT = Drafting(
    num_tokens=100,
    num_steps=40,
    num_draft_steps=20,
    num_drafted=80,
    num_tested=75,
    num_accepted=60,
)


def test_steps_are_counted_behind_the_first_token() -> None:
    usage = Usage(
        num_prompt_tokens=9,
        num_output_tokens=101,
        num_steps=41,
        num_draft_steps=20,
        num_drafted_tokens=80,
        num_tested_tokens=75,
        num_accepted_tokens=60,
    )

    assert OUTPUT == Drafting.of(usage)
    assert (0.5, 4.0, 0.8) == (OUTPUT.draft_share, OUTPUT.drafts_per_step, OUTPUT.acceptance)


def test_sums_are_of_every_count() -> None:
    other = Drafting(*range(1, 7))

    assert Drafting(101, 42, 23, 84, 80, 66) == total([OUTPUT, other])


@pytest.mark.parametrize(
    ("acceptance", "num_drafts", "expected"),
    [(0.8, 4, 3.3616), (0.6, 3, 2.176), (0.0, 4, 1.0), (1.0, 4, 5.0), (0.5, 0, 1.0)],
)
def test_expected_tokens_of_a_step(acceptance: float, num_drafts: int, expected: float) -> None:
    assert pytest.approx(expected) == expected_tokens(acceptance, num_drafts)


def test_expected_tokens_are_those_of_throwing_dice() -> None:
    rng = random.Random(1)

    def tokens() -> int:
        accepted = next((i for i in range(4) if rng.random() >= 0.7), 4)
        return accepted + 1

    mean = sum(tokens() for _ in range(40_000)) / 40_000

    assert pytest.approx(mean, rel=0.01) == expected_tokens(0.7, 4)


@pytest.mark.parametrize(
    ("num_drafts", "expected"),
    [(0, 1.0), (1, 1.1), (2, 1.2), (3, 1.4), (4, 1.6), (6, 2.0), (0.5, 1.05)],
)
def test_ratios_between_points_lie_on_lines(num_drafts: float, expected: float) -> None:
    ratios = StepRatios([(2.0, 1.2), (4.0, 1.6)])

    assert pytest.approx(expected) == ratios.at(num_drafts)


def test_one_point_makes_a_line_from_a_step_without_drafts() -> None:
    assert pytest.approx(1.6) == StepRatios([(4.0, 1.3)]).at(8)


def test_the_ratio_of_steps_with_drafts_is_told_from_the_mean_of_all() -> None:
    """Half of the steps take 1 and half 1.6: 1.3 on average."""
    assert pytest.approx(1.6) == ratio_with_drafts(1.3, 0.5)
    assert pytest.approx(1.3) == ratio_with_drafts(1.3, 1.0)


def test_the_formula_where_every_step_drafts() -> None:
    """The table of the paper: acceptance 0.8, drafts of 0.1 steps, four of them: 2.40 times."""
    always = replace(OUTPUT, num_draft_steps=40, num_drafted=160)

    predicted = predicted_speedup([always], StepRatios([(4.0, 1 + 4 * 0.1)]))

    assert pytest.approx(2.40, abs=0.005) == predicted


def test_steps_without_drafts_bring_one_token_and_take_one_step() -> None:
    """Half of 3.3616 and half of 1, over half of 1.4 and half of 1."""
    predicted = predicted_speedup([OUTPUT], StepRatios([(4.0, 1.4)]))

    assert pytest.approx((3.3616 + 1) / (1.4 + 1)) == predicted


def test_without_drafts_nothing_is_gained_and_nothing_lost() -> None:
    never = Drafting(100, 100, 0, 0, 0, 0)

    assert 1.0 == predicted_speedup([never], None)


def test_outputs_count_by_the_time_they_take() -> None:
    """Of two outputs of the same length one is four times as fast: together 2 / 1.25."""
    fast = Drafting(100, 25, 25, 75, 75, 75)
    slow = Drafting(100, 100, 0, 0, 0, 0)

    assert pytest.approx(1.6) == predicted_speedup([fast, slow], FREE)


def test_nothing_accepted_costs_what_the_steps_cost() -> None:
    rejected = Drafting(100, 100, 100, 400, 100, 0)

    assert pytest.approx(1 / 1.25) == predicted_speedup([rejected], StepRatios([(4.0, 1.25)]))
