"""Workers as their reports show them."""

from slipstream.services.scheduler.fleet import SILENT_AFTER_S, Fleet
from slipstream.shared.ids import WorkerId

from .scheduler_samples import make_report

D = WorkerId("d")


def test_a_report_that_is_not_newer_is_ignored() -> None:
    fleet = Fleet()

    assert fleet.saw(make_report("d", number=5), 0)
    assert not fleet.saw(make_report("d", number=5, num_seats=9), 0)
    assert not fleet.saw(make_report("d", number=4), 0)
    assert fleet.saw(make_report("d", number=1, epoch=2), 0)
    assert not fleet.saw(make_report("d", number=9, epoch=1), 0)


def test_silence_is_measured_from_the_last_report() -> None:
    fleet = Fleet()
    fleet.saw(make_report("d"), 10)
    assert [] == fleet.silent(10 + SILENT_AFTER_S)
    assert [D] == fleet.silent(10.1 + SILENT_AFTER_S)
    fleet.saw(make_report("d", number=2), 12)

    assert [] == fleet.silent(12)


def test_seats_are_counted_by_what_was_placed() -> None:
    fleet = Fleet()
    fleet.saw(make_report("d", num_seats=4), 0)
    fleet.assign((D, None))
    fleet.assign((D, WorkerId("p")))
    (view,) = fleet.views("decode")
    assert (2, 2) == (view.num_free_seats, view.num_assigned)
    fleet.unassign((D, None))
    fleet.unassign((D, WorkerId("p")))
    fleet.unassign((D, None))

    assert not fleet._assigned
    assert 4 == fleet.views("decode")[0].num_free_seats


def test_who_drains_has_no_host_or_is_suspect_gets_no_work() -> None:
    fleet = Fleet()
    fleet.saw(make_report("a", is_draining=True), 0)
    fleet.saw(make_report("b", host_id=None), 0)
    fleet.saw(make_report("p", "prefill"), 0)
    fleet.saw(make_report("d"), 0)
    assert [D] == [each.worker_id for each in fleet.views("decode")]
    fleet.suspect(D)
    fleet.suspect(WorkerId("nobody"))

    assert [] == fleet.views("decode")
    assert [D] == fleet.silent(0), "it is asked at once"
    fleet.saw(make_report("d", number=2), 0)
    assert [D] == [each.worker_id for each in fleet.views("decode")]
    assert [] == fleet.silent(0)


def test_blocks_are_those_of_the_worker_s_host() -> None:
    fleet = Fleet()
    assert fleet.max_num_blocks() is None
    fleet.saw(make_report("d"), 0)
    fleet.saw(make_report("k", "kv", num_free_blocks=7, num_blocks=9), 0)
    fleet.saw(make_report("l", "kv", num_free_blocks=1, num_blocks=5, host_id="other"), 0)

    assert 7 == fleet.views("decode")[0].num_free_blocks
    assert 9 == fleet.max_num_blocks()


def test_a_worker_that_is_gone_is_forgotten() -> None:
    fleet = Fleet()
    fleet.saw(make_report("d"), 0)
    fleet.remove(D)
    fleet.remove(D)

    assert (False, None, []) == (fleet.has(D), fleet.role(D), fleet.views("decode"))


def test_a_decode_worker_tells_the_size_of_the_pool_before_the_manager_does() -> None:
    """Else the first request of a new scheduler would be placed though it can never fit."""
    fleet = Fleet()
    assert fleet.max_num_blocks() is None
    fleet.saw(make_report("d", "decode", num_blocks=6), 0)

    assert 6 == fleet.max_num_blocks()
