"""Medians, and what their intervals say."""

import pytest

from slipstream.shared.measure.estimate import Estimate, describe_machine, report, table

_SAMPLES = [5.0, 1.0, 4.0, 2.0, 3.0]


def test_the_interval_holds_the_median_and_is_the_same_each_time() -> None:
    found = Estimate.of("a", _SAMPLES)

    assert 3.0 == found.median
    assert 1.0 <= found.low <= found.median <= found.high <= 5.0
    assert Estimate.of("a", _SAMPLES) == found


def test_what_slows_both_of_a_pair_down_cancels_out() -> None:
    """Twice as much in every round: the ratio is certain, though the times are not."""
    found = Estimate.of_ratio("a", _SAMPLES, [2 * each for each in _SAMPLES])

    assert (0.5, 0.5, 0.5) == (found.median, found.low, found.high)


def test_a_ratio_is_that_of_the_medians() -> None:
    found = Estimate.of_ratio("a", [1.0, 2.0, 30.0], [4.0, 40.0, 5.0])

    assert pytest.approx(2 / 5) == found.median


def test_a_table_and_a_report_hold_the_figures() -> None:
    estimates = [Estimate.of("first", _SAMPLES), Estimate.of("second", [7.0])]

    assert ["first", "second"] == [line.split()[0] for line in table(estimates).splitlines()[1:]]
    assert 7.0 == report(estimates, {})["results"]["second"]["median"]
    assert describe_machine()["num_cores"] >= 1
