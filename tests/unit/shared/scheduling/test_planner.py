"""What runs next, and where: queue and fleet together."""

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.scheduling.placement import PlacementRules
from slipstream.shared.scheduling.planner import Planner
from slipstream.shared.scheduling.queue import Policy, WaitingQueue

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


def test_nothing_is_placed_where_nobody_is() -> None:
    planner, _ = planner_of(report("p", "prefill"))
    planner.add(waiting(), 0)

    assert [] == plan_all(planner)


def test_the_first_class_finds_a_seat_though_others_wait_for_one() -> None:
    planner, _ = planner_of(report("d", num_seats=3))
    planner.add(waiting("i0", 0, latency_class="interactive"), 0)
    for number in range(4):
        planner.add(waiting(f"s{number}", number), 0)
    assert ["i0", "s0"] == plan_all(planner), "one seat is kept"
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
