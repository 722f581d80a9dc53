"""What a storm is made of, and how a recovery is measured."""

from collections import Counter

from tests.chaos.storm_plan import plan, recovery_gaps


def test_the_whole_storm_kills_each_role_often_enough() -> None:
    blows = plan(1, 90)
    kills = Counter(each.role for each in blows if each.fault == "kill")

    assert 90 == kills.total()
    assert kills["nats"] >= 3
    roles = ("scheduler", "kv", "prefill", "decode", "draft", "gateway")
    assert min(kills[role] for role in roles) >= 10
    others = Counter(each.fault for each in blows if each.fault != "kill")
    assert {"freeze", "cut", "clock", "disk", "squeeze"} == set(others)
    assert [each.at_s for each in blows] == sorted(each.at_s for each in blows)


def test_a_seed_is_a_storm() -> None:
    assert plan(3, 20) == plan(3, 20)
    assert plan(3, 20) != plan(4, 20)


def test_only_long_gaps_that_a_blow_fell_into_are_recoveries() -> None:
    arrivals = [0.0, 0.1, 1.1, 1.2, 3.2, 3.3]

    assert [1.0] == recovery_gaps(arrivals, [0.5, 3.25], 0.25)
    assert [] == recovery_gaps(arrivals, [], 0.25)
