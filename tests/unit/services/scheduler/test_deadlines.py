"""Requests come up when somebody must look at their deadline."""

from slipstream.services.scheduler.deadlines import Deadlines
from slipstream.shared.ids import RequestId

A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def test_each_comes_up_once_when_its_time_has_come() -> None:
    deadlines = Deadlines({A, B, C}.__contains__)
    for request_id, at in ((A, 3.0), (B, 1.0), (C, 2.0)):
        deadlines.look_at(request_id, at)

    assert [] == deadlines.due(0.9)
    assert [B, C] == deadlines.due(2.0)
    assert [A] == deadlines.due(9.0)
    assert [] == deadlines.due(9.0)


def test_those_that_have_ended_are_dropped() -> None:
    known = {A, B}
    deadlines = Deadlines(known.__contains__)
    deadlines.look_at(A, 1.0)
    deadlines.look_at(B, 1.0)
    known.remove(A)

    assert [B] == deadlines.due(5.0)


def test_endings_before_their_deadline_do_not_pile_up() -> None:
    known = {A}
    deadlines = Deadlines(known.__contains__)
    deadlines.look_at(A, 900.0)
    for number in range(10_000):
        deadlines.look_at(RequestId(str(number)), 300.0)
        deadlines.compact(len(known))

    assert len(deadlines) <= 1100
    assert [A] == deadlines.due(1000.0)
