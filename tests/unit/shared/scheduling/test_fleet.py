"""Workers as their reports show them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.ids import HostId, RequestId, WorkerId
from slipstream.shared.scheduling.fleet import SILENT_AFTER_S, Fleet
from slipstream.shared.scheduling.placed import Placement

from .scheduling_samples import HOST, fleet_of, report

D, P = WorkerId("d"), WorkerId("p")
REMOTE = Placement(D, HOST, P, "remote", "test")
LOCAL = Placement(D, HOST, None, "local", "test")


def is_empty(fleet: Fleet) -> bool:
    return not (fleet._assigned or fleet._placed or fleet._windows)


def test_a_report_that_is_not_newer_is_ignored() -> None:
    fleet = Fleet()

    assert fleet.saw(report("d", number=5), 0)
    assert not fleet.saw(report("d", number=5, num_seats=9), 0)
    assert not fleet.saw(report("d", number=4), 0)
    assert fleet.saw(report("d", number=1, epoch=2), 0)
    assert not fleet.saw(report("d", number=9, epoch=1), 0)


def test_silence_is_measured_from_the_last_report() -> None:
    fleet = Fleet()
    fleet.saw(report("d"), 10)
    assert [] == fleet.silent(10 + SILENT_AFTER_S)
    assert [D] == fleet.silent(10.1 + SILENT_AFTER_S)
    fleet.saw(report("d", number=2), 12)

    assert [] == fleet.silent(12)


def test_seats_are_counted_by_what_was_placed() -> None:
    fleet = fleet_of(report("d"), report("p", "prefill"))
    fleet.assign(RequestId("a"), LOCAL, 10)
    fleet.assign(RequestId("b"), REMOTE, 10)
    view = fleet.view(D)
    assert (2, 2) == (view.num_free_seats, view.num_assigned)
    assert (3, 10) == (fleet.view(P).num_free_seats, fleet.view(P).window.num_tokens)
    for _ in range(2):
        fleet.unassign(RequestId("a"))
        fleet.unassign(RequestId("b"))

    assert is_empty(fleet)
    assert (4, 4) == (fleet.view(D).num_free_seats, fleet.view(P).num_free_seats)


def test_a_prefill_worker_s_seat_is_free_when_the_prompt_is_computed() -> None:
    fleet = fleet_of(report("d"), report("p", "prefill"))
    fleet.assign(RequestId("a"), REMOTE, 10)
    assert fleet.prompt_done(RequestId("a"))
    assert not fleet.prompt_done(RequestId("a"))
    assert not fleet.prompt_done(RequestId("unknown"))

    assert (4, 3) == (fleet.view(P).num_free_seats, fleet.view(D).num_free_seats)
    fleet.unassign(RequestId("a"))
    assert is_empty(fleet)


def test_who_drains_has_no_host_or_is_suspect_gets_no_work() -> None:
    fleet = fleet_of(
        report("a", is_draining=True),
        report("b", host_id=None),
        report("p", "prefill"),
        report("d"),
    )
    assert [D] == [each.worker_id for each in fleet.least_busy("decode", max_num=9)]
    fleet.suspect(D)
    fleet.suspect(WorkerId("nobody"))

    assert ([], [], 0) == (
        fleet.least_busy("decode", max_num=9),
        fleet.least_busy("decode"),
        fleet.num_open("decode"),
    )
    assert [D] == fleet.silent(0), "it is asked at once"
    fleet.saw(report("d", number=2), 0)
    assert [D] == [each.worker_id for each in fleet.least_busy("decode")]
    assert [] == fleet.silent(0)
    fleet.saw(report("d", number=3, is_draining=True), 0)
    assert 0 == fleet.num_open("decode")


def test_blocks_are_those_of_the_worker_s_host() -> None:
    fleet = Fleet()
    assert fleet.max_num_blocks is None
    fleet.saw(report("d"), 0)
    fleet.saw(report("k", "kv", num_free_blocks=7, num_blocks=9), 0)
    fleet.saw(report("l", "kv", num_free_blocks=1, num_blocks=5, host_id="other"), 0)
    assert 9 == fleet.max_num_blocks
    assert 2 / 9 == pytest.approx(fleet.view(D).load, abs=1 / 64)
    fleet.saw(report("k", "kv", number=2, num_blocks=3), 0)

    assert 5 == fleet.max_num_blocks
    fleet.remove(WorkerId("l"))
    assert 3 == fleet.max_num_blocks


def test_a_worker_that_is_gone_is_forgotten() -> None:
    fleet = fleet_of(report("d"))
    fleet.remove(D)
    fleet.remove(D)

    assert (False, None, []) == (fleet.has(D), fleet.role(D), fleet.least_busy("decode", max_num=9))
    assert not fleet._loads


def test_a_worker_that_moves_to_another_host_is_listed_there_only() -> None:
    fleet = fleet_of(report("d"))
    fleet.saw(report("d", number=2, host_id="other"), 0)

    assert [] == fleet.least_busy("decode", HOST)
    assert [D] == [each.worker_id for each in fleet.least_busy("decode", HostId("other"))]


def test_a_decode_worker_tells_the_size_of_the_pool_before_the_manager_does() -> None:
    """Else the first request of a new scheduler would be placed though it can never fit."""
    fleet = Fleet()
    assert fleet.max_num_blocks is None
    fleet.saw(report("d", "decode", num_blocks=6), 0)

    assert 6 == fleet.max_num_blocks


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["assign", "remote", "done", "unassign", "report", "remove"]),
            st.integers(0, 3),
            st.sampled_from("de"),
        )
    )
)
def test_the_least_busy_is_that_of_a_full_search(steps: list[tuple[str, int, str]]) -> None:
    fleet = fleet_of(report("d"), report("e"), report("p", "prefill"))
    placed: set[str] = set()
    known = {WorkerId("d"), WorkerId("e")}
    for number, (verb, request, worker) in enumerate(steps, 2):
        name = f"r{request}"
        if verb in ("assign", "remote") and name not in placed:
            prefill = P if verb == "remote" else None
            placement = Placement(WorkerId(worker), HOST, prefill, "local", "test")
            fleet.assign(RequestId(name), placement, 300)
            placed.add(name)
        elif verb == "done":
            fleet.prompt_done(RequestId(name))
        elif verb == "unassign":
            fleet.unassign(RequestId(name))
            placed.discard(name)
        elif verb == "report":
            fleet.saw(report(worker, number=number), number)
            known.add(WorkerId(worker))
        elif verb == "remove":
            fleet.remove(WorkerId(worker))
            known.discard(WorkerId(worker))
        views = [fleet.view(each) for each in known]
        expected = sorted(views, key=lambda each: (each.load, each.worker_id))
        assert expected == fleet.least_busy("decode", max_num=9)
    for name in placed:
        fleet.unassign(RequestId(name))
    assert is_empty(fleet)


def test_the_class_of_kv_of_a_host_is_that_of_a_decode_worker_that_takes_work() -> None:
    fleet = fleet_of(
        report("k", "kv"), report("p", "prefill", kv_class="other"), report("d", kv_class="one")
    )
    assert ("one", "") == (fleet.kv_class(HOST), fleet.kv_class(HostId("elsewhere")))
    assert (HOST, None) == (fleet.host_id(WorkerId("k")), fleet.host_id(WorkerId("nobody")))
    fleet.saw(report("d", number=2, kv_class="one", is_draining=True), 0.0)

    assert "" == fleet.kv_class(HOST)
