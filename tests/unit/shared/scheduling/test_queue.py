"""Order and bounds of the waiting queue."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.ids import RequestId
from slipstream.shared.scheduling.classes import CLASSES
from slipstream.shared.scheduling.fair_order import FairOrder
from slipstream.shared.scheduling.key_order import PRIORITY_PART, KeyOrder
from slipstream.shared.scheduling.queue import AGED_EVERY, POLICIES, Policy, WaitingQueue
from slipstream.shared.scheduling.waiting import WaitingRequest

from .scheduling_samples import take_all, waiting

POINT_S = PRIORITY_PART * CLASSES["standard"].ttft_target_s


def queue_of(*requests: WaitingRequest, policy: Policy = "priority") -> WaitingQueue:
    queue = WaitingQueue(100, 10_000, policy)
    for request in requests:
        queue.add(request)
    return queue


def test_first_come_first_served_knows_nothing_else() -> None:
    queue = queue_of(
        waiting("a", 1, latency_class="batch", work_s=9),
        waiting("b", 2, latency_class="interactive", priority=5, deadline_at=3),
        waiting("c", 3, tenant="other"),
        policy="fcfs",
    )

    assert ["a", "b", "c"] == take_all(queue)


def test_priority_goes_first_and_ages() -> None:
    """A point is worth some seconds: who has waited longer than that isn't passed any more."""
    queue = queue_of(
        waiting("early", 0),
        waiting("urgent", POINT_S - 1, priority=1),
        waiting("late", POINT_S + 1, priority=1),
        waiting("low", 0, priority=-1),
    )

    assert ["urgent", "early", "late", "low"] == take_all(queue)


def test_less_work_goes_first_until_the_longer_has_waited_for_it() -> None:
    """However much work: nobody passes any more when half of what is promised is over."""
    half_s = CLASSES["standard"].ttft_target_s / 2
    queue = queue_of(
        waiting("giant", 0, work_s=2000),
        waiting("long", 0, work_s=2),
        waiting("short", 1, work_s=0.5),
        waiting("short, but too late", half_s, work_s=0.5),
        waiting("nothing, but too late", half_s + 1, work_s=0),
        policy="sjf",
    )
    order = take_all(queue)

    assert ["short", "long", "giant"] == order[:3]
    assert {"short, but too late", "nothing, but too late"} == set(order[3:])


def test_the_earliest_deadline_goes_first() -> None:
    queue = queue_of(
        waiting("no deadline", 0),
        waiting("far", 1, deadline_at=50),
        waiting("near", 2, deadline_at=9),
        policy="deadline",
    )

    assert ["near", "far", "no deadline"] == take_all(queue)


@pytest.mark.parametrize("policy", [each for each in POLICIES if each != "fcfs"])
def test_classes_come_before_what_the_policy_orders(policy: Policy) -> None:
    queue = queue_of(
        waiting("batch", 0, latency_class="batch", priority=100, deadline_at=1),
        waiting("standard", 1),
        waiting("interactive", 2, latency_class="interactive", work_s=5, priority=-100),
        policy=policy,
    )

    assert ["interactive", "standard", "batch"] == take_all(queue)


def test_no_class_starves() -> None:
    """However many better ones come: an aged one gets every eighth turn, the oldest first."""
    queue = queue_of(*(waiting(f"b{number}", number, latency_class="batch") for number in range(3)))
    turns = []
    now = CLASSES["batch"].aging_s + 2
    for number in range(3 * AGED_EVERY):
        queue.add(waiting(f"i{number}", now, latency_class="interactive"))
        request = queue.first(now)
        assert request is not None
        queue.take(request, now)
        turns.append(str(request.request_id))
    places = [turns.index(f"b{number}") for number in range(3)]

    assert [AGED_EVERY - 1, 2 * AGED_EVERY - 1, 3 * AGED_EVERY - 1] == places


def test_who_has_not_waited_long_gets_no_turn_of_a_better_class() -> None:
    queue = queue_of(waiting("b", 0, latency_class="batch"))
    now = CLASSES["batch"].aging_s - 1
    for number in range(3 * AGED_EVERY):
        queue.add(waiting(f"i{number}", now, latency_class="interactive"))
        request = queue.first(now)
        assert request is not None
        assert "interactive" == request.latency_class
        queue.take(request, now)


def test_both_worse_classes_get_turns() -> None:
    """One after the other, however much longer one of them has waited."""
    queue = WaitingQueue(10_000, 10**6)
    for number in range(500):
        queue.add(waiting(f"s{number}", 0))
        queue.add(waiting(f"b{number}", 0, latency_class="batch"))
    turns: Counter[str] = Counter()
    for number in range(1000):
        now = 100.0 + number / 10
        queue.add(waiting(f"i{number}", now, latency_class="interactive"))
        request = queue.first(now)
        assert request is not None
        queue.take(request, now)
        turns[request.latency_class] += 1

    assert 125 == pytest.approx(turns["standard"] + turns["batch"], abs=2)
    assert abs(turns["standard"] - turns["batch"]) <= 1


def test_who_may_pass_is_the_first_of_each_class_and_the_shortest() -> None:
    queue = queue_of(
        waiting("s0", 0, num_prompt_tokens=500),
        waiting("s1", 1, num_prompt_tokens=60),
        waiting("b0", 0, latency_class="batch"),
    )
    names = [str(turn.request.request_id) for turn in queue.turns(1)]

    assert ["s0", "b0", "s1", "b0"] == names


def test_tenants_get_equal_shares_whatever_they_send() -> None:
    """One sends ten times more requests, the other requests that are three times longer."""
    queue = WaitingQueue(10_000, 1_000_000, "fair")
    for number in range(1000):
        queue.add(waiting(f"a{number}", number / 10, tenant="a", num_prompt_tokens=100))
    for number in range(100):
        queue.add(waiting(f"b{number}", number, tenant="b", num_prompt_tokens=300))
    served: Counter[str] = Counter()
    for _ in range(200):
        request = queue.first(0)
        assert request is not None
        queue.take(request, 0)
        served[request.tenant] += request.num_prompt_tokens

    assert abs(served["a"] - served["b"]) <= 300


def test_output_counts_as_much_as_prompts() -> None:
    queue = WaitingQueue(1000, 100_000, "fair")
    for number in range(100):
        queue.add(waiting(f"a{number}", tenant="a"))
        queue.add(waiting(f"b{number}", tenant="b"))
    served: Counter[str] = Counter()
    for _ in range(80):
        request = queue.first(0)
        assert request is not None
        queue.take(request, 0)
        num_output = 300 if request.tenant == "a" else 0
        queue.counters.charge(request.tenant, num_output)
        served[request.tenant] += request.num_prompt_tokens + num_output

    assert abs(served["a"] - served["b"]) <= 400


def test_weights_are_shares() -> None:
    queue = WaitingQueue(1000, 100_000, "fair", {"a": 3.0})
    for number in range(200):
        queue.add(waiting(f"a{number}", tenant="a"))
        queue.add(waiting(f"b{number}", tenant="b"))
    turns = Counter(name[0] for name in take_all(queue)[:100])

    assert 75 == pytest.approx(turns["a"], abs=1)


def test_nobody_saves_up_a_claim() -> None:
    """Who comes back after a pause starts level: not with all that others got meanwhile."""
    queue = WaitingQueue(1000, 100_000, "fair")
    queue.add(waiting("b", tenant="b"))
    for number in range(100):
        queue.add(waiting(f"a{number}", tenant="a"))
    take_all(queue)
    for number in range(100, 120):
        queue.add(waiting(f"a{number}", tenant="a"))
        queue.add(waiting(f"b{number}", tenant="b"))
    turns = Counter(name[0] for name in take_all(queue)[:20])

    assert 10 == pytest.approx(turns["a"], abs=1)


def test_many_tenants_leave_no_memory_behind() -> None:
    queue = WaitingQueue(10, 1000, "fair")
    for number in range(10_000):
        queue.add(waiting(f"r{number}", tenant=f"t{number}"))
        assert [f"r{number}"] == take_all(queue)

    assert len(queue.counters) < 3000


def test_a_tenant_that_comes_and_goes_is_not_in_the_heap_many_times() -> None:
    queue = WaitingQueue(10, 1000, "fair")
    queue.add(waiting("first", tenant="a"))
    for number in range(1000):
        queue.add(waiting(f"r{number}", tenant="b"))
        queue.remove(RequestId(f"r{number}"))
    order = queue._lanes[1].order

    assert isinstance(order, FairOrder)
    assert len(order._heap) < 5
    assert ["first"] == take_all(queue)


def test_tenants_that_came_and_left_do_not_pile_up_behind_one_that_waits() -> None:
    queue = WaitingQueue(10, 1000, "fair")
    queue.add(waiting("first", tenant="a"))
    for number in range(5000):
        queue.add(waiting(f"r{number}", tenant=f"t{number}"))
        queue.remove(RequestId(f"r{number}"))
    order = queue._lanes[1].order

    assert isinstance(order, FairOrder)
    assert len(order._heap) < 100
    assert ["first"] == take_all(queue)


def test_what_comes_back_goes_before_its_class() -> None:
    first = waiting("a", 1)
    queue = queue_of(first, waiting("b", 2))
    queue.take(first, 3)
    queue.add(waiting("c", 3, latency_class="interactive"))
    queue.add(first, is_first=True)

    assert ["c", "a", "b"] == take_all(queue)


def test_bounds_are_count_and_bytes() -> None:
    queue = WaitingQueue(2, 100)
    assert queue.can_add(100)
    assert not queue.can_add(101)
    queue.add(waiting("a", num_bytes=60))
    assert queue.can_add(40)
    assert not queue.can_add(41)
    assert not queue.can_add(2, 2)
    queue.add(waiting("b", num_bytes=1))

    assert not queue.can_add(1)
    queue.remove(RequestId("a"))
    assert queue.can_add(1)


def test_a_request_waits_once() -> None:
    request = waiting()
    queue = queue_of(request)
    queue.add(request, is_first=True)

    assert (1, 10) == (len(queue), queue.num_bytes)
    assert queue.remove(request.request_id) is request
    assert queue.remove(request.request_id) is None
    assert (0, 0, None) == (len(queue), queue.num_bytes, queue.first(0))


def test_cancelled_requests_do_not_pile_up_behind_one_that_waits() -> None:
    queue = queue_of(waiting("first", priority=1))
    for number in range(10_000):
        queue.add(waiting(f"r{number}", number))
        queue.remove(RequestId(f"r{number}"))
    lane = queue._lanes[1]

    assert isinstance(lane.order, KeyOrder)
    assert len(lane.order._heap) < 100
    assert len(lane.by_length._heap) < 100
    assert len(lane._arrivals) < 100
    assert ["first"] == take_all(queue)


def test_work_ahead_is_that_of_its_class_and_better_ones() -> None:
    queue = queue_of(
        waiting("i", latency_class="interactive", work_s=1),
        waiting("s", work_s=2),
        waiting("b", latency_class="batch", work_s=4),
    )

    assert 1 == queue.work_ahead_s(waiting(latency_class="interactive"))
    assert 3 == queue.work_ahead_s(waiting())
    assert 7 == queue.work_ahead_s(waiting(latency_class="batch"))


def test_work_ahead_of_a_modest_tenant_is_not_that_of_a_greedy_one() -> None:
    queue = WaitingQueue(100, 10_000, "fair")
    for number in range(50):
        queue.add(waiting(f"a{number}", tenant="a", work_s=1))

    assert 1 == queue.work_ahead_s(waiting(tenant="b", work_s=1))
    assert 50 == queue.work_ahead_s(waiting(tenant="a", work_s=1))


def test_work_ahead_is_of_those_that_go_before() -> None:
    queue = WaitingQueue(10_000, 10**6)
    for number in range(1000):
        queue.add(waiting(f"r{number}", number / 1000, priority=number % 3 - 1, work_s=1))

    assert 0 == queue.work_ahead_s(waiting(arrived_at=1, priority=100))
    assert 333 == pytest.approx(queue.work_ahead_s(waiting(arrived_at=1, priority=1)), rel=0.3)
    assert 1000 == pytest.approx(queue.work_ahead_s(waiting(arrived_at=1, priority=-1)))


def test_a_prompt_is_paid_for_once() -> None:
    queue = WaitingQueue(100, 10_000, "fair")
    queue.add(waiting("r", tenant="a"))
    take_all(queue)
    queue.add(waiting("r", tenant="a", is_charged=True), is_first=True)
    take_all(queue)

    assert 100 == queue.counters.of("a")


@given(
    st.sampled_from(POLICIES),
    st.lists(
        st.tuples(
            st.sampled_from(["add", "again", "remove", "take"]),
            st.integers(0, 5),
            st.sampled_from(sorted(CLASSES)),
            st.integers(0, 2),
        )
    ),
)
def test_whatever_happens_each_that_waits_comes_once(
    policy: Policy, steps: list[tuple[str, int, str, int]]
) -> None:
    queue = WaitingQueue(100, 10_000, policy)
    expected: set[str] = set()
    for number, (verb, request, name_of_class, tenant) in enumerate(steps, 1):
        name = f"r{request}"
        if verb == "remove":
            queue.remove(RequestId(name))
            expected.discard(name)
        elif verb == "take" and (first := queue.first(number)) is not None:
            queue.take(first, number)
            expected.remove(str(first.request_id))
        elif verb in ("add", "again"):
            made = waiting(
                name, number, latency_class=name_of_class, tenant=f"t{tenant}", work_s=0.5
            )
            queue.add(made, is_first=verb == "again")
            expected.add(name)

    assert len(expected) * 10 == queue.num_bytes
    assert sorted(expected) == sorted(str(each.request_id) for each in queue.requests())
    assert sorted(expected) == sorted(take_all(queue))
    assert 0 == queue.work_ahead_s(waiting(latency_class="batch"))
