"""How long a request will wait."""

import pytest

from slipstream.shared.scheduling.wait_estimate import WaitEstimate


def moved(work_s: float, every_s: float, num: int) -> WaitEstimate:
    """Return an estimate after so much work left a queue at each tick."""
    estimate = WaitEstimate()
    estimate.looked(0.0, is_anyone_left=True)
    for number in range(1, num + 1):
        estimate.took(work_s, number * every_s)
        estimate.looked(number * every_s, is_anyone_left=True)
    return estimate


def test_nothing_is_claimed_before_the_queue_was_seen_moving() -> None:
    estimate = WaitEstimate()
    assert 0.0 == estimate.wait_s(0.0, 0.0)
    assert estimate.wait_s(1.0, 0.0) is None
    estimate.looked(0.0, is_anyone_left=True)
    estimate.looked(0.4, is_anyone_left=True)
    assert estimate.wait_s(1.0, 0.0) is None


@pytest.mark.parametrize(("work_s", "every_s"), [(1.0, 0.5), (0.1, 0.1), (2.0, 1.0)])
def test_a_steady_queue_is_known_by_its_rate(work_s: float, every_s: float) -> None:
    estimate = moved(work_s, every_s, 100)

    assert 10 / (work_s / every_s) == pytest.approx(estimate.wait_s(10.0, 0.0), rel=0.15)


def test_time_without_a_queue_does_not_count() -> None:
    """An idle scheduler places what little comes: that is not all it could."""
    estimate = moved(1.0, 0.5, 100)
    before = estimate.wait_s(10.0, 0.0)
    estimate.looked(50.0, is_anyone_left=False)
    for number in range(100):
        estimate.took(100.0, 50.0 + number / 100)
        estimate.looked(50.0 + number / 100, is_anyone_left=False)
    estimate.looked(51.0, is_anyone_left=True)

    assert before == pytest.approx(estimate.wait_s(10.0, 0.0), rel=0.02)


def test_long_ago_says_nothing_of_now() -> None:
    estimate = moved(1.0, 0.5, 100)
    estimate.looked(60.0, is_anyone_left=True)
    assert (estimate.wait_s(10.0, 0.0) or 0) > 1000, "it stood still"
    estimate.looked(61.0, is_anyone_left=False)
    estimate.looked(3661.0, is_anyone_left=True)

    assert estimate.wait_s(10.0, 0.0) is None


def test_a_queue_that_stands_still_is_noticed_and_workers_go_on_all_the_same() -> None:
    estimate = moved(1.0, 0.5, 100)
    estimate.looked(54.0, is_anyone_left=True)
    slower = estimate.wait_s(10.0, 0.0)
    estimate.looked(60.0, is_anyone_left=True)

    assert slower is not None
    assert slower > 10
    assert (estimate.wait_s(10.0, 0.0) or 0) > 1000
    assert 20 == estimate.wait_s(10.0, 0.5), "long answers end some time: so much is sure"
