"""The measures of the machine, at every ISA level that it has: that they do what they count."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.loader import NativeUnavailableError
from slipstream.kernels.cpu.machine import ARITHMETICS, Arithmetic, Machine

LEVELS = loader.available_levels()
_NUM_THREADS = 3
# From "slower than by hand" to "faster than any processor".
_SANE_RATES = (1e5, 1e15)

pytestmark = pytest.mark.skipif(not LEVELS, reason="the native kernels were not built")
Open = Callable[[str], Machine]


@pytest.fixture
def open_machine() -> Iterator[Open]:
    opened: list[Machine] = []

    def open_level(level: str) -> Machine:
        opened.append(Machine(loader.load(level), _NUM_THREADS))
        return opened[-1]

    yield open_level
    for machine in opened:
        machine.close()


@pytest.mark.parametrize("num_lines", [1, 2, 3, 4, 5, 63, 64, 4097])
@pytest.mark.parametrize("level", LEVELS)
def test_every_byte_is_read_once(level: str, num_lines: int, open_machine: Open) -> None:
    """The sum of random words comes out, whatever the threads and the distance."""
    words = np.random.default_rng(num_lines).integers(0, 2**64, 8 * num_lines, dtype=np.uint64)
    machine = open_machine(level)

    readings = [
        machine.read(words.view(np.uint8), num_threads, prefetch_bytes)
        for num_threads in range(1, _NUM_THREADS + 1)
        for prefetch_bytes in (0, 64, 4096)
    ]

    assert {int(words.sum())} == {reading.word_sum for reading in readings}
    assert all(reading.seconds > 0 and math.isfinite(reading.seconds) for reading in readings)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("level", LEVELS)
def test_multiply_adds_are_counted_by_their_own_sums(
    level: str, num_threads: int, arithmetic: Arithmetic, open_machine: Open
) -> None:
    """All threads do a power of four of equal loops: a sum that lost one would not divide."""
    found = open_machine(level).multiply_add(arithmetic, num_threads)

    assert found.num_done > 0
    assert 0 == found.num_done % (256 * 16 * num_threads)
    assert found.seconds >= 0.005
    assert _SANE_RATES[0] < found.operations_per_s < _SANE_RATES[1]


def test_a_library_without_the_measures_says_what_to_do() -> None:
    with pytest.raises(NativeUnavailableError, match="make setup"):
        loader.load().function("slipstream_of_tomorrow", None)
