"""Deadlines and tombstones: times on a process's own clock."""

import time

from slipstream.shared.ids import RequestId
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.tombstones import Tombstones

ATTEMPT = (RequestId("r"), 1)


def test_no_deadline_is_never_over() -> None:
    deadline = Deadline.from_ms(None)

    assert (None, False) == (deadline.remaining_ms, deadline.is_over)


def test_a_deadline_counts_down_to_zero_and_not_below() -> None:
    assert 59_000 < (Deadline.from_ms(60_000).remaining_ms or 0) <= 60_000
    over = Deadline(time.monotonic() - 5)

    assert (0, True) == (over.remaining_ms, over.is_over)


def test_a_tombstone_stands_for_its_time() -> None:
    tombstones = Tombstones(keep_s=60)
    tombstones.add(ATTEMPT, 100)

    assert tombstones.has(ATTEMPT, 159)
    assert not tombstones.has(ATTEMPT, 160)
    assert not tombstones.has((RequestId("r"), 2), 100)


def test_old_tombstones_go_when_new_ones_come() -> None:
    tombstones = Tombstones(keep_s=60)
    for now in range(1000):
        tombstones.add((RequestId(f"r{now}"), 1), now)

    assert 60 == len(tombstones._until)


def test_a_tombstone_set_again_stands_longer() -> None:
    tombstones = Tombstones(keep_s=60)
    for now, number in ((100, 1), (110, 2), (150, 1), (165, 3)):
        tombstones.add((RequestId("r"), number), now)

    assert tombstones.has((RequestId("r"), 1), 209)
    assert {1, 2, 3} == {number for _, number in tombstones._until}
    tombstones.add((RequestId("r"), 4), 175)
    assert {1, 3, 4} == {number for _, number in tombstones._until}


def test_the_cost_of_a_tombstone_does_not_grow_with_their_number() -> None:
    """Each request leaves two: fifty thousand take well under what copying the table would."""
    tombstones = Tombstones(keep_s=60)
    began_s = time.perf_counter()

    for number in range(50_000):
        tombstones.add((RequestId(f"r{number}"), 1), 100)

    assert time.perf_counter() - began_s < 10
