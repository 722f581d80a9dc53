"""Events come in the order of their times; those of one time as they were planned."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.simulation.events import EventLoop


@given(st.lists(st.sampled_from([0.0, 0.5, 0.5, 1.0, 3.0])))
def test_events_run_by_time_and_then_as_planned(times: list[float]) -> None:
    loop, seen = EventLoop(), []

    def note(number: int) -> None:
        seen.append((loop.now, number))

    for number, time_s in enumerate(times):
        loop.at(time_s, partial(note, number))
    loop.run()

    assert sorted((time_s, number) for number, time_s in enumerate(times)) == seen


def test_what_is_planned_meanwhile_has_its_turn_and_never_in_the_past() -> None:
    loop, seen = EventLoop(), []

    def late() -> None:
        loop.at(1.0, lambda: seen.append(loop.now))
        loop.after(0.25, lambda: seen.append(loop.now))

    loop.at(2.0, late)
    loop.at(2.1, lambda: seen.append(loop.now))
    loop.run()

    assert [2.0, 2.1, 2.25] == seen
