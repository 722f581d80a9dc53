"""All of a worker's time belongs to an activity, and so does that of every request it holds."""

import pytest

from slipstream.shared.worker.activities import ACTIVITIES, ActivityClock


class Watched:
    """A clock on a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.counts = (0, 0)
        self.clock = ActivityClock(lambda: self.counts, lambda: self.now)

    def spent(self) -> dict[str, float]:
        return {name: value for name, value in self.clock.seconds().items() if value}

    def spent_of_requests(self) -> dict[str, float]:
        return {name: value for name, value in self.clock.request_seconds().items() if value}


def test_time_goes_to_what_was_entered_up_to_now() -> None:
    watched = Watched()
    watched.now = 103
    watched.clock.enter("messages")
    watched.now = 108

    assert {"idle": 3, "messages": 5} == watched.spent()
    watched.clock.enter("idle")
    watched.now = 110

    assert {"idle": 5, "messages": 5} == watched.spent()
    assert list(ACTIVITIES) == list(watched.clock.seconds())


def test_a_step_is_split_by_what_its_engine_says_and_the_rest_stays() -> None:
    watched = Watched()
    watched.counts = (4, 4)
    watched.clock.enter("messages")
    watched.now = 110
    watched.clock.split({"weights": 6, "kv": 3})
    watched.clock.enter("sampling")

    assert {"weights": 6, "kv": 3, "messages": 1} == watched.spent()
    assert {"weights": 24, "kv": 12, "messages": 4} == watched.spent_of_requests()


def test_requests_beside_the_batch_wait() -> None:
    watched = Watched()
    watched.counts = (2, 5)
    watched.clock.enter("other")
    watched.now = 110
    watched.clock.split({"weights": 4})

    assert {"weights": 4, "other": 6} == watched.spent()
    assert {"weights": 8, "other": 12, "waiting": 30} == watched.spent_of_requests()


def test_a_worker_with_requests_and_none_to_step_waits() -> None:
    watched = Watched()
    watched.now = 102
    watched.counts = (0, 1)
    watched.clock.recount()
    watched.now = 105
    watched.counts = (0, 0)
    watched.clock.recount()
    watched.now = 106

    assert {"idle": 3, "waiting": 3} == watched.spent()
    assert {"waiting": 3} == watched.spent_of_requests()


def test_all_of_the_time_is_there() -> None:
    watched = Watched()
    for number, activity in enumerate(ACTIVITIES):
        watched.clock.enter(activity)
        watched.now += 1.25 * number

    assert pytest.approx(watched.now - 100) == sum(watched.clock.seconds().values())
