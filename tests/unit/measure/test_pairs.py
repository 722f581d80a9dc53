"""When enough pairs have been taken."""

from slipstream.shared.measure.pairs import MIN_NUM_PAIRS, is_enough, is_first_first

_SAME = [1.25] * (MIN_NUM_PAIRS - 1)


def test_few_pairs_that_agree_are_not_enough() -> None:
    """One pair has an interval of no width, and says nothing."""
    assert not is_enough("x", [], 20)
    assert not is_enough("x", _SAME, 20)
    assert is_enough("x", [*_SAME, 1.25], 20)


def test_pairs_are_taken_until_the_interval_is_narrow() -> None:
    wide = [1.0, 1.05] * 3
    # Of so many pairs half a percent apart the median is known; of six that lie apart it isn't.
    assert not is_enough("x", wide, 20)
    assert is_enough("x", [1.0, 1.005] * 3, 20)
    assert is_enough("x", wide, 6)


def test_fewer_pairs_than_the_least_are_enough_where_no_more_are_asked_for() -> None:
    assert is_enough("x", [1.25], 1)


def test_ways_take_turns_to_go_first() -> None:
    assert [True, False, True] == [is_first_first(0, turn) for turn in range(3)]
    assert [False, True, False] == [is_first_first(1, turn) for turn in range(3)]
