"""Where a request runs, and why."""

from typing import Any

import pytest

from slipstream.shared.ids import HostId, RequestId, WorkerId
from slipstream.shared.messages.common import Route
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.scheduling.placed import Placement
from slipstream.shared.scheduling.placement import PlacementRules, choose

from .scheduling_samples import HOST, fleet_of, report, waiting

D, P = report("d"), report("p", "prefill")
RULES = PlacementRules(min_num_remote_tokens=64, num_reserved_seats=0)


def place(
    fleet: Fleet, route: Route = "auto", num_tokens: int = 100, **arguments: Any
) -> Placement | None:
    request = waiting(route=route, num_prompt_tokens=num_tokens)
    return choose(request, fleet, RULES, **arguments)


def occupy(fleet: Fleet, worker_id: str, num: int = 1, *, num_tokens: int = 0) -> None:
    """Place so many requests on a decode worker, each with a prompt to compute there."""
    for number in range(num):
        placement = Placement(WorkerId(worker_id), HOST, None, "local", "test")
        fleet.assign(RequestId(f"{worker_id}{number}"), placement, num_tokens)


@pytest.mark.parametrize(
    ("route", "num_tokens", "prefill", "expected"),
    [
        ("remote", 1, [P], ("remote", "p", "asked_for_remote")),
        ("remote", 1, [], ("local", None, "no_prefill_worker")),
        ("remote", 1, [report("p", "prefill", host_id="o")], ("local", None, "no_prefill_worker")),
        ("local", 999, [P], ("local", None, "asked_for_local")),
        ("auto", 64, [P], ("remote", "p", "long_prompt")),
        ("auto", 63, [P], ("local", None, "short_prompt")),
        ("auto", 999, [], ("local", None, "no_prefill_worker")),
    ],
)
def test_route_and_reason(
    route: Route, num_tokens: int, prefill: list[WorkerReport], expected: tuple[str, str, str]
) -> None:
    choice = place(fleet_of(D, *prefill), route, num_tokens)

    assert choice is not None
    assert ("d", *expected) == (
        choice.decode_worker_id,
        choice.route,
        choice.prefill_worker_id,
        choice.reason,
    )


def test_logprobs_of_the_prompt_are_made_where_the_stream_is() -> None:
    request = waiting(route="remote", wants_prompt_logprobs=True)
    choice = choose(request, fleet_of(D, P), RULES)

    assert choice is not None
    assert ("local", "prompt_logprobs") == (choice.route, choice.reason)


@pytest.mark.parametrize("decode", [[], [report("d", num_seats=0)]])
def test_without_a_free_decode_seat_nobody_is_chosen(decode: list[WorkerReport]) -> None:
    assert place(fleet_of(*decode, P), "remote") is None


@pytest.mark.parametrize("num_seats", [0, 1])
def test_a_full_prefill_worker_is_waited_for(num_seats: int) -> None:
    """It is there: computing the prompt elsewhere in silence would be another service."""
    fleet = fleet_of(D, report("p", "prefill", num_seats=num_seats))
    if num_seats:
        placement = Placement(WorkerId("d"), HOST, WorkerId("p"), "remote", "test")
        fleet.assign(RequestId("x"), placement, 100)

    assert place(fleet, "remote") is None
    assert place(fleet, "auto") is None


def test_the_least_loaded_worker_is_chosen_and_ties_are_settled() -> None:
    fleet = fleet_of(report("c"), report("b"), report("a"))
    occupy(fleet, "c", 2)
    occupy(fleet, "b")
    occupy(fleet, "a")
    choice = place(fleet, "local")

    assert choice is not None
    assert "a" == choice.decode_worker_id


def test_a_host_with_room_for_kv_is_preferred() -> None:
    fleet = fleet_of(
        report("a", host_id="h"),
        report("b", host_id="i"),
        report("k", "kv", host_id="h", num_blocks=100, num_free_blocks=10),
        report("l", "kv", host_id="i", num_blocks=100, num_free_blocks=90),
    )
    choice = place(fleet, "local")

    assert choice is not None
    assert "b" == choice.decode_worker_id


def test_workers_that_failed_the_request_come_last() -> None:
    fleet = fleet_of(report("a"), report("b"), report("p", "prefill"), report("q", "prefill"))
    occupy(fleet, "b")
    avoid = {WorkerId("a"), WorkerId("p")}
    choice = place(fleet, "remote", avoid=avoid)
    alone = place(fleet_of(report("a"), P), "remote", avoid=avoid)

    assert choice is not None
    assert alone is not None
    assert ("b", "q") == (choice.decode_worker_id, choice.prefill_worker_id)
    assert ("a", "p") == (alone.decode_worker_id, alone.prefill_worker_id)


def test_a_far_prefill_worker_is_taken_where_there_is_none_and_kv_can_be_moved() -> None:
    far = report("p", "prefill", host_id="other", kv_class="same")
    fleet = fleet_of(report("d", kv_class="same"), far)
    choice = place(fleet, "remote")
    after_failure = place(fleet, "remote", avoid={WorkerId("p")})

    assert choice is not None
    assert after_failure is not None
    assert ("p", HOST) == (choice.prefill_worker_id, choice.host_id)
    assert "no_prefill_worker" == after_failure.reason


def test_a_cached_prompt_is_not_sent_away() -> None:
    choice = place(fleet_of(D, P), "auto", 500, cached={HOST: 480})

    assert choice is not None
    assert ("local", "cached_prompt", 480) == (
        choice.route,
        choice.reason,
        choice.num_cached_tokens,
    )


def test_a_prefix_is_worth_a_detour_but_no_queue() -> None:
    fleet = fleet_of(report("a", host_id="h"), report("b", host_id="i"))
    cached = {HostId("h"): 1900}
    near = place(fleet, "local", 2000, cached=cached)
    occupy(fleet, "a", 3)
    still = place(fleet, "local", 2000, cached=cached)
    short = place(fleet, "local", 100, cached={HostId("h"): 64})

    assert near is not None
    assert still is not None
    assert short is not None
    assert ["a", "a", "b"] == [each.decode_worker_id for each in (near, still, short)]


def test_prompts_wait_when_enough_are_given_out() -> None:
    fleet = fleet_of(D, window_tokens=1000)
    occupy(fleet, "d", 1, num_tokens=1000)
    assert place(fleet, "local", 300) is None
    assert place(fleet, "local", 250) is not None, "it is short enough to pass"
    assert fleet.prompt_done(RequestId("d0"))

    assert place(fleet, "local", 300) is not None


def test_a_busy_prefill_worker_loses_long_prompts_to_a_clearly_faster_decode_worker() -> None:
    """Only where both have measured how fast they are."""
    slow, fast = {"prompt_tokens_per_s": 400.0}, {"prompt_tokens_per_s": 1000.0}
    busy = Placement(WorkerId("d"), HOST, WorkerId("p"), "remote", "test")
    for decode, prefill, expected in (
        ({}, {}, "long_prompt"),
        (slow, fast, "long_prompt"),
        (fast, fast, "prefill_busy"),
    ):
        fleet = fleet_of(report("d", **decode), report("p", "prefill", **prefill))
        fleet.assign(RequestId("x"), busy, 600)
        choice = place(fleet, "auto", 500)
        assert choice is not None
        assert expected == choice.reason
        asked = place(fleet, "remote", 500)
        assert asked is not None
        assert "asked_for_remote" == asked.reason


def test_what_is_less_urgent_makes_no_prefill_worker_busy() -> None:
    speeds = {"prompt_tokens_per_s": 1000.0}
    fleet = fleet_of(report("d", **speeds), report("p", "prefill", **speeds))
    batch = Placement(WorkerId("d"), HOST, WorkerId("p"), "remote", "test")
    fleet.assign(RequestId("x"), batch, 4000, rank=2)
    choice = choose(waiting(num_prompt_tokens=500), fleet, RULES, rank=0)
    of_equal = choose(waiting(num_prompt_tokens=500), fleet, RULES, rank=2)

    assert choice is not None
    assert of_equal is not None
    assert ("long_prompt", "prefill_busy") == (choice.reason, of_equal.reason)


def test_seats_are_kept_for_the_first_class() -> None:
    fleet = fleet_of(report("d", num_seats=8, num_free_seats=8))
    rules = PlacementRules(num_reserved_seats=2)
    occupy(fleet, "d", 6)

    assert choose(waiting(route="local"), fleet, rules, rank=1) is None
    assert choose(waiting(route="local"), fleet, rules, rank=0) is not None


def test_a_small_worker_is_not_kept_for_one_class_alone() -> None:
    fleet = fleet_of(report("d", num_seats=2))
    rules = PlacementRules(num_reserved_seats=2)

    assert choose(waiting(route="local"), fleet, rules, rank=1) is not None


def test_a_far_prefill_worker_helps_out_where_the_neighbour_is_full() -> None:
    fleet = fleet_of(
        report("d", kv_class="same"),
        report("near", "prefill", kv_class="same"),
        report("far", "prefill", host_id="other", kv_class="same"),
    )
    placement = Placement(WorkerId("d"), HOST, WorkerId("near"), "remote", "test")
    fleet.assign(RequestId("x"), placement, 2000)
    choice = place(fleet, "remote", 800)

    assert choice is not None
    assert "far" == choice.prefill_worker_id


def test_a_far_prefill_worker_that_is_full_is_waited_for() -> None:
    """Computing the prompt elsewhere in silence would be another service."""
    fleet = fleet_of(
        report("d", kv_class="same"),
        report("far", "prefill", host_id="other", kv_class="same"),
    )
    placement = Placement(WorkerId("d"), HOST, WorkerId("far"), "remote", "test")
    fleet.assign(RequestId("x"), placement, 2000)

    assert place(fleet, "remote", 800) is None


def test_workers_whose_prompts_wait_hide_nobody_that_is_idle() -> None:
    reports = [report(f"d{number:02}", num_seats=32, num_free_seats=32) for number in range(20)]
    fleet = fleet_of(*reports)
    for number in range(8):
        occupy(fleet, f"d{number:02}", num_tokens=2000)
    for number in range(8, 20):
        occupy(fleet, f"d{number:02}", 10)
    choice = place(fleet, "local", 1000)

    assert choice is not None
    assert choice.decode_worker_id >= "d08"


def test_who_failed_a_request_is_not_asked_again_while_others_are_busy() -> None:
    fleet = fleet_of(report("a"), report("b", num_seats=1, num_free_seats=1))
    occupy(fleet, "b")

    assert place(fleet, "local", avoid={WorkerId("a")}) is None
    fleet.unassign(RequestId("b0"))
    choice = place(fleet, "local", avoid={WorkerId("a")})
    assert choice is not None
    assert "b" == choice.decode_worker_id
