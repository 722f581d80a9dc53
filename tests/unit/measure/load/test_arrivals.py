"""Arrivals: how many, how far apart, and what makes them come."""

import itertools
import random
import statistics

import pytest

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.load.arrivals import (
    ScheduledArrivals,
    StreamArrivals,
    burst_times,
    even_times,
    poisson_times,
    traced_times,
)


def _gaps(times_s: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times_s)]


@pytest.mark.parametrize("rate", [0.5, 3.0, 40.0])
def test_poisson_arrivals_have_their_rate_and_no_memory(rate: float) -> None:
    """Gaps of a Poisson process are exponential: as large as they scatter."""
    times_s = poisson_times(rate, 4000 / rate, random.Random(1))
    gaps = _gaps(times_s)

    assert times_s == sorted(times_s)
    assert 4000 == pytest.approx(len(times_s), rel=0.05)
    assert 1 / rate == pytest.approx(statistics.mean(gaps), rel=0.05)
    assert 1.0 == pytest.approx(statistics.stdev(gaps) / statistics.mean(gaps), rel=0.05)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    one, same, other = (poisson_times(2.0, 50.0, random.Random(seed)) for seed in (1, 1, 2))

    assert one == same
    assert one != other


def test_bursts_come_whole_at_the_rate_of_all_requests() -> None:
    times_s = burst_times(8.0, 1000.0, 4, random.Random(1))

    assert 8000 == pytest.approx(len(times_s), rel=0.1)
    moments = set(times_s)
    assert len(times_s) == 4 * len(moments)
    assert all(4 == times_s.count(moment) for moment in list(moments)[:20])


def test_even_arrivals_keep_the_same_distance() -> None:
    times_s = even_times(4.0, 2.0)

    assert [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75] == times_s


def test_a_trace_keeps_its_proportions_at_any_rate() -> None:
    times_s = [100.0, 101.0, 101.0, 104.0, 108.0, 150.0]

    found = traced_times(times_s, seconds=2.0, rate=2.0)

    assert [0.0, 0.25, 0.25, 1.0] == found


def test_a_trace_that_is_used_up_says_which_rate_is_too_high() -> None:
    with pytest.raises(
        ConfigurationError, match=r"--rate 3 for 2 s takes 6 requests .* has 5.*lower"
    ):
        traced_times([0.0, 1.0, 2.0, 3.0, 4.0], seconds=2.0, rate=3.0)


def test_an_open_loop_does_not_wait_for_answers() -> None:
    arrivals = ScheduledArrivals([0.1, 0.2, 0.2, 0.9])

    assert [] == arrivals.due(0.05)
    assert [0, 1, 2] == [each.number for each in arrivals.due(0.5)]
    assert 0.9 == arrivals.next_at_s
    assert [(0.9, 3)] == [(each.at_s, each.number) for each in arrivals.due(5.0)]
    assert arrivals.next_at_s is None


def test_a_closed_loop_keeps_its_number_until_the_end() -> None:
    arrivals = StreamArrivals(3, until_s=10.0, ramp_s=0.0, pause_s=0.0, rng=random.Random(1))

    assert [0, 1, 2] == [each.number for each in arrivals.due(0.0)]
    assert [] == arrivals.due(5.0)
    arrivals.ended(5.0)
    assert [(5.0, 3)] == [(each.at_s, each.number) for each in arrivals.due(5.0)]
    arrivals.ended(10.0)
    assert arrivals.next_at_s is None


def test_streams_pause_for_different_times_around_the_mean() -> None:
    arrivals = StreamArrivals(1, until_s=1e6, ramp_s=0.0, pause_s=0.1, rng=random.Random(1))
    arrivals.due(0.0)
    pauses = []
    for number in range(500):
        arrivals.ended(float(number))
        assert arrivals.next_at_s is not None
        pauses.append(arrivals.next_at_s - number)
        arrivals.due(number + 0.5)

    assert 0.1 == pytest.approx(statistics.mean(pauses), rel=0.1)
    assert 0 <= min(pauses) < 0.01
    assert 0.19 < max(pauses) <= 0.2


def test_streams_begin_one_after_another() -> None:
    arrivals = StreamArrivals(4, until_s=10.0, ramp_s=2.0, pause_s=0.0, rng=random.Random(1))

    assert [0.0, 0.5, 1.0, 1.5] == [each.at_s for each in arrivals.due(2.0)]
