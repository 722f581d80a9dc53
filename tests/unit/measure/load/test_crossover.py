"""Who is better at which load, and where that changes."""

import pytest

from slipstream.shared.measure.load.crossover import crossings


def test_two_lines_cross_where_they_meet() -> None:
    found = crossings("ttft", [1, 2, 3], [10, 20, 40], [20, 22, 20], is_more_better=False)

    assert (0, 0, 1) == tuple(found.winners)
    assert [pytest.approx(2 + (1 / 11) / (1 / 11 + 1 / 2))] == list(found.at)


def test_more_may_be_better() -> None:
    found = crossings("goodput", [1, 2], [10, 20], [20, 10], is_more_better=True)

    assert [1, 0] == list(found.winners)
    assert [1.5] == list(found.at)


def test_loads_come_in_any_order() -> None:
    found = crossings("goodput", [2, 1], [20, 10], [10, 20], is_more_better=True)

    assert ([1, 2], [1, 0]) == (list(found.loads), list(found.winners))


def test_what_differs_by_little_or_is_missing_is_won_by_nobody() -> None:
    first, second = [0.0, 100, None, 100], [0.0, 104, 5.0, 90]
    found = crossings("ttft", [1, 2, 3, 4], first, second, is_more_better=False)

    assert [None, None, None, 1] == list(found.winners)
    assert [] == list(found.at)


def test_names_stand_in_the_row() -> None:
    row = crossings("x", [1, 2], [1, 2], [2, 1], is_more_better=False).as_row("a", "b")

    assert {"figure": "x", "loads": [1, 2], "better": ["a", "b"], "crosses_at": [1.5]} == row
