"""Who leads, by the clock of one scheduler."""

import pytest

from slipstream.services.scheduler.leadership import (
    GRACE_S,
    POLL_S,
    RENEW_S,
    VALID_S,
    Leadership,
)


@pytest.fixture
def active() -> Leadership:
    """One that won the lease at 100."""
    made = Leadership()
    made.won(100.0, 7)
    return made


def test_first_write_is_the_epoch(active: Leadership) -> None:
    assert (7, "active", True) == (active.epoch, active.state, active.is_sure(100.0))


def test_further_writes_leave_the_epoch(active: Leadership) -> None:
    assert active.look(100.0 + RENEW_S / 2) is None
    assert "renew" == active.look(100.0 + RENEW_S)
    active.renewed(100.0 + RENEW_S, 8)

    assert (7, 8) == (active.epoch, active.revision)
    assert active.is_sure(100.0 + RENEW_S + VALID_S - 0.01)


def test_epoch_is_above_all_that_were_seen() -> None:
    """Also where the bucket was lost, and its revisions begin anew."""
    leadership = Leadership()
    leadership.saw_epoch(50)
    leadership.won(0.0, 3)

    assert 51 == leadership.epoch


def test_who_wakes_after_its_lease_ran_out_is_silent_before_it_looks(active: Leadership) -> None:
    woken = 100.0 + VALID_S

    assert not active.is_sure(woken)
    assert "renew" == active.look(woken)
    assert "doubtful" == active.state


def test_doubt_ends_with_a_write(active: Leadership) -> None:
    active.look(110.0)
    active.renewed(110.0, 8)

    assert ("active", 7) == (active.state, active.epoch)
    assert active.is_sure(110.0)


def test_doubt_ends_with_somebody_elses_entry(active: Leadership) -> None:
    active.look(110.0)
    active.lost(110.0)

    assert ("standby", 0) == (active.state, active.epoch)
    assert active.look(110.0) is None
    assert "create" == active.look(110.0 + POLL_S)


def test_faded_entry_is_written_again_if_nobody_had_one(active: Leadership) -> None:
    assert active.wrote_again(110.0, 8)
    assert ("active", 7) == (active.state, active.epoch)


def test_faded_entry_is_lost_if_somebody_had_one(active: Leadership) -> None:
    """The number of our entry tells that there were others between."""
    assert not active.wrote_again(110.0, 9)
    assert "standby" == active.state


def test_unconfirmed_writes_explain_a_gap(active: Leadership) -> None:
    active.unreachable(101.0, is_absent=False, may_have_written=True)

    assert active.wrote_again(110.0, 9)


def test_after_a_reconnect_the_active_writes_at_once_and_a_standby_waits(
    active: Leadership,
) -> None:
    standby = Leadership()
    for each in (active, standby):
        each.reconnected(200.0)

    assert "renew" == active.look(200.0)
    assert standby.look(200.0 + GRACE_S - 0.1) is None
    assert "create" == standby.look(200.0 + GRACE_S)


def test_leaving_scheduler_is_succeeded_at_once() -> None:
    standby = Leadership()
    standby.reconnected(200.0)
    standby.heard_leaving(200.0)

    assert "create" == standby.look(200.0)


def test_without_storage_it_serves_unguarded() -> None:
    leadership = Leadership()
    leadership.unreachable(0.0, is_absent=True, may_have_written=False)

    assert ("active", 0) == (leadership.state, leadership.epoch)
    assert leadership.is_sure(1000.0)


def test_trouble_makes_nobody_lead_while_another_says_it_does() -> None:
    leadership = Leadership()
    for second in range(20):
        leadership.heard_active(float(second), 5)
        leadership.unreachable(second + 0.5, is_absent=False, may_have_written=False)

    assert "standby" == leadership.state


def test_trouble_that_lasts_makes_one_serve_unguarded() -> None:
    leadership = Leadership()
    states = []
    for second in range(8):
        leadership.unreachable(float(second), is_absent=False, may_have_written=False)
        states.append(leadership.state)

    assert ["standby"] * 5 + ["active"] * 3 == states


def test_storage_that_comes_back_guards_the_same_term() -> None:
    leadership = Leadership()
    leadership.unreachable(0.0, is_absent=True, may_have_written=False)
    assert "create" == leadership.look(10.0)
    leadership.won(10.0, 7)

    assert (1, 7, True) == (leadership.num_terms, leadership.epoch, leadership.is_guarded)
