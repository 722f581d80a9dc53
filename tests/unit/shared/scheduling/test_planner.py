"""What runs next, and where: queue and fleet together."""

from collections import Counter, deque

import pytest

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.scheduling.classes import CLASSES
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.scheduling.placement import PlacementRules
from slipstream.shared.scheduling.planner import Planner
from slipstream.shared.scheduling.queue import AGED_EVERY, Policy, WaitingQueue

from .scheduling_samples import fleet_of, report, waiting


def planner_of(
    *reports: WorkerReport, policy: Policy = "priority", window_tokens: int = 1000
) -> tuple[Planner, Fleet]:
    fleet = fleet_of(*reports, window_tokens=window_tokens)
    queue = WaitingQueue(1000, 100_000, policy)
    return Planner(queue, fleet, PlacementRules(num_reserved_seats=1)), fleet


def plan_all(planner: Planner, now: float = 0.0) -> list[str]:
    planned = []
    while (each := planner.next(now)) is not None:
        planned.append(str(each.request.request_id))
    return planned


def test_requests_are_placed_in_order_until_there_is_no_seat() -> None:
    planner, fleet = planner_of(report("d", num_seats=2))
    for number in range(4):
        planner.add(waiting(f"r{number}", number), 0)

    assert ["r0", "r1"] == plan_all(planner)
    fleet.unassign(RequestId("r0"))
    assert ["r2"] == plan_all(planner)
    assert 1 == len(planner.queue)


def test_workers_are_told_the_class_and_the_priority_except_under_fcfs() -> None:
    def priorities(policy: Policy) -> list[int]:
        planner, _ = planner_of(report("d", num_seats=9, num_free_seats=9), policy=policy)
        planner.add(waiting("b", 0, latency_class="batch", priority=7), 0)
        planner.add(waiting("i", 0, latency_class="interactive"), 0)
        found = [planner.next(0), planner.next(0)]
        return [each.job_priority for each in found if each is not None]

    of_class = {name: each.job_priority for name, each in CLASSES.items()}
    assert [of_class["interactive"], of_class["batch"] + 7] == priorities("priority")
    assert [0, 0] == priorities("fcfs")


def test_whose_turn_came_for_its_age_is_as_urgent_to_workers_as_the_best() -> None:
    planner, _ = planner_of(report("d", num_seats=9, num_free_seats=9))
    planner.add(waiting("old", 0, latency_class="batch"), 0)
    for number in range(AGED_EVERY):
        planner.add(waiting(f"i{number}", 100, latency_class="interactive"), 100)
    found = [planner.next(100.0) for _ in range(AGED_EVERY)]
    aged = next(each for each in found if each is not None and each.request.request_id == "old")

    assert CLASSES["interactive"].job_priority == aged.job_priority


def test_nothing_is_placed_where_nobody_is() -> None:
    planner, _ = planner_of(report("p", "prefill"))
    planner.add(waiting(), 0)

    assert [] == plan_all(planner)


def test_the_first_class_finds_a_seat_though_others_wait_for_one() -> None:
    planner, _ = planner_of(report("d", num_seats=4))
    planner.add(waiting("i0", 0, latency_class="interactive"), 0)
    for number in range(4):
        planner.add(waiting(f"s{number}", number), 0)
    assert ["i0", "s0", "s1"] == plan_all(planner), "one seat is kept"
    planner.add(waiting("i1", 5, latency_class="interactive"), 5)

    assert ["i1"] == plan_all(planner, 5)


def test_no_seat_is_kept_for_a_class_that_nobody_uses() -> None:
    planner, _ = planner_of(report("d", num_seats=3))
    for number in range(4):
        planner.add(waiting(f"s{number}", number), 0)
    assert ["s0", "s1", "s2"] == plan_all(planner)

    planner, _ = planner_of(report("d", num_seats=3))
    planner.add(waiting("i", 0, latency_class="interactive"), 0)
    for number in range(4):
        planner.add(waiting(f"s{number}", number), 0)
    assert ["i", "s0", "s1"] == plan_all(planner, 1000.0), "it has been long ago"


def test_a_short_prompt_is_not_hostage_to_long_ones() -> None:
    planner, fleet = planner_of(report("d", num_seats=16))
    for number in range(3):
        planner.add(waiting(f"long{number}", number, num_prompt_tokens=4000), 0)
    planner.add(waiting("short", 9, num_prompt_tokens=20), 9)
    assert ["long0", "short"] == plan_all(planner)
    fleet.prompt_done(RequestId("long0"))

    assert ["long1"] == plan_all(planner)


def test_the_order_stays_open_until_a_worker_can_begin() -> None:
    """What is given out is ordered no more: workers get a window of prompts, not the queue."""
    planner, fleet = planner_of(report("d", num_seats=16), policy="sjf")
    for number in range(10):
        planner.add(waiting(f"r{number}", number / 100, num_prompt_tokens=600, work_s=5), 0)
    assert ["r0", "r1"] == plan_all(planner)
    planner.add(waiting("small", 1, num_prompt_tokens=600, work_s=0.1), 1)
    fleet.prompt_done(RequestId("r0"))

    assert ["small"] == plan_all(planner)


def test_nobody_starves_though_seats_are_kept_and_better_classes_want_all_of_them() -> None:
    """Three classes through the planner: the worse two get every eighth turn between them."""
    planner, fleet = planner_of(report("d", num_seats=8, num_free_seats=8))
    for number in range(2000):
        planner.add(waiting(f"s{number}", 0, num_prompt_tokens=10), 0)
        planner.add(waiting(f"b{number}", 0, num_prompt_tokens=10, latency_class="batch"), 0)
    turns: Counter[str] = Counter()
    running: deque[RequestId] = deque()
    now = 200.0
    for number in range(800):
        name = f"i{number}"
        planner.add(waiting(name, now, num_prompt_tokens=10, latency_class="interactive"), now)
        now += 0.01
        while (planned := planner.next(now)) is not None:
            turns[planned.request.latency_class] += 1
            running.append(planned.request.request_id)
        if len(running) > 7:
            fleet.unassign(running.popleft())

    assert turns["interactive"] > 0.8 * turns.total()
    assert turns["batch"] > 0.03 * turns.total()
    assert turns["standard"] > 0.03 * turns.total()


def test_one_that_waits_for_a_prefill_worker_keeps_nobody_waiting_who_needs_none() -> None:
    planner, _ = planner_of(report("d", num_seats=16), report("p", "prefill", num_seats=0))
    planner.add(waiting("i", 0, latency_class="interactive", route="remote"), 0)
    planner.add(waiting("s", 1, route="local"), 0)

    assert ["s"] == plan_all(planner)


def test_short_prompts_of_another_tenant_do_not_take_the_share_of_who_is_next() -> None:
    """A's prompts are long and wait for the window; B's would pass them, for ever."""
    planner, fleet = planner_of(
        report("d", num_seats=999, num_free_seats=999), policy="fair", window_tokens=1024
    )
    for number in range(40):
        planner.add(waiting(f"a{number}", 0, tenant="a", num_prompt_tokens=4000), 0)
    for number in range(800):
        planner.add(waiting(f"b{number}", 0, tenant="b", num_prompt_tokens=200), 0)
    served: Counter[str] = Counter()
    given: deque[RequestId] = deque()
    for _ in range(400):
        while (planned := planner.next(0.0)) is not None:
            served[planned.request.tenant] += planned.request.num_prompt_tokens
            given.append(planned.request.request_id)
        if min(planner.queue.requests(), key=lambda each: each.tenant).tenant == "b":
            break
        fleet.prompt_done(given.popleft())

    assert served["b"] / served["a"] == pytest.approx(1.0, abs=0.15)


def test_an_aged_turn_finds_room_where_its_own_class_would_find_none() -> None:
    """Whose turn came for its age goes before all others at the worker too."""
    planner, _ = planner_of(report("d", num_seats=16, num_free_seats=16))
    planner.add(waiting("s", 0, num_prompt_tokens=4000), 0)
    assert ["s"] == plan_all(planner)
    planner.add(waiting("b", 0, latency_class="batch", num_prompt_tokens=4000), 0)
    assert [] == plan_all(planner, 200.0), "the window is full"
    for number in range(AGED_EVERY):
        name = f"i{number}"
        planner.add(waiting(name, 200, latency_class="interactive", num_prompt_tokens=10), 200)

    before = [f"i{number}" for number in range(AGED_EVERY - 1)]
    assert [*before, "b", f"i{AGED_EVERY - 1}"] == plan_all(planner, 200.0)
