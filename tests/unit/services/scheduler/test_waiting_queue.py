"""Order and bounds of the waiting queue."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.services.scheduler.queue import WaitingQueue
from slipstream.shared.ids import RequestId

from .scheduler_samples import make_record


def take_all(queue: WaitingQueue) -> list[str]:
    taken = []
    while (record := queue.first()) is not None:
        queue.remove(record.request_id)
        taken.append(str(record.request_id))
    return taken


def test_highest_priority_first_then_first_come() -> None:
    queue = WaitingQueue(10, 1000)
    for request, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)):
        queue.add(make_record(request, priority=priority))

    assert ["b", "d", "a", "c", "e"] == take_all(queue)


def test_what_comes_back_goes_before_its_equals() -> None:
    queue = WaitingQueue(10, 1000)
    first = make_record("a")
    queue.add(first)
    queue.add(make_record("b"))
    queue.remove(RequestId("a"))
    queue.add(make_record("c", priority=1))
    queue.add(first, is_first=True)

    assert ["c", "a", "b"] == take_all(queue)


def test_bounds_are_count_and_bytes() -> None:
    queue = WaitingQueue(2, 100)
    assert queue.can_add(100)
    assert not queue.can_add(101)
    queue.add(make_record("a", num_bytes=60))
    assert queue.can_add(40)
    assert not queue.can_add(41)
    assert not queue.can_add(2, 2)
    queue.add(make_record("b", num_bytes=1))

    assert not queue.can_add(1)
    queue.remove(RequestId("a"))
    assert queue.can_add(1)


def test_a_request_waits_once() -> None:
    queue = WaitingQueue(10, 1000)
    record = make_record()
    queue.add(record)
    queue.add(record, is_first=True)

    assert (1, 10) == (len(queue), queue.num_bytes)
    assert queue.remove(record.request_id) is record
    assert queue.remove(record.request_id) is None
    assert (0, 0, None) == (len(queue), queue.num_bytes, queue.first())


def test_cancelled_requests_do_not_pile_up_behind_one_that_waits() -> None:
    queue = WaitingQueue(10, 1000)
    queue.add(make_record("first", priority=1))
    for number in range(10_000):
        queue.add(make_record(f"r{number}"))
        queue.remove(RequestId(f"r{number}"))

    assert len(queue._heap) < 100
    assert ["first"] == take_all(queue)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "again", "remove"]), st.integers(0, 5), st.integers(-1, 1)
        )
    )
)
def test_the_order_is_that_of_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    queue = WaitingQueue(100, 10_000)
    expected: dict[str, tuple[int, int]] = {}
    records = {}
    for number, (verb, request, priority) in enumerate(steps, 1):
        name = f"r{request}"
        if verb == "remove":
            queue.remove(RequestId(name))
            expected.pop(name, None)
        elif name not in expected:
            is_first = verb == "again"
            records[name] = make_record(name, priority=priority)
            queue.add(records[name], is_first=is_first)
            expected[name] = (-priority, -number if is_first else number)

    assert len(expected) * 10 == queue.num_bytes
    assert sorted(expected, key=lambda name: expected[name]) == take_all(queue)
