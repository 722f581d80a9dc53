"""A step takes no more threads than other programs leave cores."""

from collections.abc import Sequence

import numpy as np
import pytest

from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.matrix import pointer_to

pytestmark = pytest.mark.skipif(
    not loader.available_levels(), reason="the native kernels were not built"
)
_FREE = (10_000, 9_800)  # microseconds of a step, and those that each of its threads had a core
_CROWDED = (200_000, 100_000)


def num_threads(most: int, steps: Sequence[tuple[int, int]]) -> list[int]:
    """Return with how many threads each of some steps was taken."""
    function = loader.load().function("slipstream_crowd", None)
    times = np.array(steps, np.int64)
    found = np.empty(len(steps), np.int32)
    function(most, len(steps), pointer_to(times), pointer_to(found))
    return found.tolist()


def test_all_threads_are_taken_while_they_have_their_cores() -> None:
    assert {2} == set(num_threads(2, [_FREE] * 1000))


def test_threads_that_have_half_a_core_each_become_one_thread_for_a_while() -> None:
    # Sixteen times the 200 ms that showed it, in steps of 10 ms; then it is tried again.
    found = num_threads(2, [_CROWDED, *[_FREE] * 400])

    assert [2] + [1] * 320 + [2] * 80 == found


def test_looking_whether_the_crowd_has_gone_costs_little() -> None:
    found = num_threads(2, [_CROWDED, *[_FREE] * 320] * 3)

    assert [2, *[1] * 320] * 3 == found


def test_nobody_looks_while_not_even_one_thread_has_its_core() -> None:
    assert [2, *[1] * 99] == num_threads(2, [_CROWDED] * 100)


def test_a_hiccup_is_no_crowd() -> None:
    steps = [*[_FREE] * 10, (60_000, 30_000), *[_FREE] * 50]

    assert {2} == set(num_threads(2, steps))


def test_a_crowd_among_many_cores_leaves_the_others() -> None:
    # Of eight threads each had 70 % of a core: 5.6 cores.
    assert [8, 7, 7] == num_threads(8, [(200_000, 140_000), _FREE, _FREE])


def test_one_thread_is_always_left() -> None:
    assert [2, 1, 1] == num_threads(2, [(200_000, 1000), (200_000, 1000), (200_000, 1000)])
