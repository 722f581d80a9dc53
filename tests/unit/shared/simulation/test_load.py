"""Loads come at the rate that was asked for, and are like what was asked for."""

import itertools
import statistics

import pytest

from slipstream.shared.measure.load.traces import Lengths
from slipstream.shared.simulation.load import (
    Bursts,
    LengthRange,
    Mix,
    RequestMaker,
    poisson,
    replayed,
)

MIX = Mix(lengths=LengthRange((10, 20), (3, 5)), tenants={"a": 0.8, "b": 0.2})


def test_a_poisson_load_has_its_rate_and_its_mix() -> None:
    asked = list(poisson(RequestMaker(MIX, 1), 20.0, 4000, 1))
    gaps = [after.arrived_at - before.arrived_at for before, after in itertools.pairwise(asked)]

    assert 20.0 == pytest.approx(4000 / asked[-1].arrived_at, rel=0.05)
    assert 1.0 == pytest.approx(statistics.pstdev(gaps) / statistics.mean(gaps), rel=0.1)
    assert 0.8 == pytest.approx(sum(each.tenant == "a" for each in asked) / 4000, abs=0.03)
    assert {10, 20} == {f(each.num_prompt_tokens for each in asked) for f in (min, max)}
    assert {3, 5} == {f(each.num_output_tokens for each in asked) for f in (min, max)}


def test_bursts_keep_the_mean_and_have_their_factor() -> None:
    bursts = Bursts(factor=5.0, period_s=10.0, burst_s=1.0)
    asked = list(poisson(RequestMaker(MIX, 1), 30.0, 9000, 1, bursts))
    seconds = asked[-1].arrived_at
    num_in_bursts = sum(each.arrived_at % 10 < 1 for each in asked)

    assert 30.0 == pytest.approx(9000 / seconds, rel=0.05)
    assert 5.0 == pytest.approx(num_in_bursts / (seconds / 10) / 30.0, rel=0.1)


def test_a_trace_is_replayed_in_order_again_and_again_at_the_rate_that_is_asked() -> None:
    trace = [(0.0, Lengths(1, 2)), (1.0, Lengths(3, 4)), (3.0, Lengths(5, 6))]
    asked = list(replayed(RequestMaker(MIX, 1), trace, 7))
    fast = list(replayed(RequestMaker(MIX, 1), trace, 7, rate=20.0))

    assert [0.0, 1.0, 3.0, 4.5, 5.5, 7.5, 9.0] == pytest.approx([e.arrived_at for e in asked])
    assert [1, 3, 5, 1, 3, 5, 1] == [each.num_prompt_tokens for each in asked]
    assert [each.arrived_at / 30 for each in asked] == pytest.approx(
        [each.arrived_at for each in fast]
    )
