"""What this machine can do at most: the bytes it reads and the multiply-adds it makes a second."""

import ctypes
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.loader import NativeLibrary

Arithmetic = Literal["int8", "float32"]
ARITHMETICS: tuple[Arithmetic, ...] = ("int8", "float32")

LINE_BYTES = 64  # what a pass is counted in
# Long enough that starting and ending threads is nothing beside it.
_MIN_SECONDS = 0.005
_FIRST_NUM_LOOPS = 256
# The fastest counts: a neighbour on the core makes a short pass long, and none makes it short.
_NUM_PASSES = 3
# The sums of float32 count themselves exactly up to here.
_MAX_NUM_LOOPS = 1 << 24

_Buffer = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass over a buffer; `word_sum` is that of its 64-bit words, modulo 2^64."""

    seconds: float
    word_sum: int


@dataclass(frozen=True, slots=True)
class MultiplyAdds:
    """Multiply-adds from registers; `num_done` is counted by their own sums."""

    seconds: float
    num_done: int

    @property
    def operations_per_s(self) -> float:
        """Two operations each, as everyone counts them."""
        return 2 * self.num_done / self.seconds


class Machine:
    """Measures through threads of its own, which are started once and wait at a barrier."""

    def __init__(self, library: NativeLibrary, num_threads: int) -> None:
        handle, integer, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self.num_threads = num_threads
        self.level = library.level
        new = library.function("slipstream_machine_new", handle, integer)
        self._free = library.function("slipstream_machine_free", None, handle)
        self._read = library.function(
            *("slipstream_read", ctypes.c_double, handle, handle, size, integer, size),
            ctypes.POINTER(ctypes.c_uint64),
        )
        self._multiply_add = library.function(
            *("slipstream_multiply_add", ctypes.c_double, handle, integer, integer, size),
            ctypes.POINTER(ctypes.c_double),
        )
        self._handle: int | None = new(num_threads)
        if self._handle is None:
            raise MemoryError(f"{num_threads} threads can't be started")

    def read(self, buffer: _Buffer, num_threads: int, prefetch_bytes: int = 0) -> Reading:
        """Read a buffer once, each thread a part of it, fetching so far ahead (0: not at all)."""
        self._check(num_threads)
        assert buffer.nbytes % LINE_BYTES == 0, f"{buffer.nbytes} bytes are no whole cache lines"
        word_sum = ctypes.c_uint64()
        seconds = self._read(
            *(self._handle, buffer.ctypes.data, buffer.nbytes, num_threads, prefetch_bytes),
            word_sum,
        )
        return Reading(seconds, word_sum.value)

    def multiply_add(self, arithmetic: Arithmetic, num_threads: int) -> MultiplyAdds:
        """Multiply and add for some milliseconds, as fast as the instructions of the level do."""
        self._check(num_threads)
        num_loops = _FIRST_NUM_LOOPS
        while True:
            passes = [self._pass(arithmetic, num_threads, num_loops) for _ in range(_NUM_PASSES)]
            fastest = min(passes, key=lambda each: each.seconds)
            if fastest.seconds >= _MIN_SECONDS or num_loops >= _MAX_NUM_LOOPS:
                return fastest
            num_loops *= 4

    def close(self) -> None:
        """End the threads."""
        if self._handle is not None:
            self._free(self._handle)
            self._handle = None

    def _pass(self, arithmetic: Arithmetic, num_threads: int, num_loops: int) -> MultiplyAdds:
        num_done = ctypes.c_double()
        seconds = self._multiply_add(
            self._handle, arithmetic == "int8", num_threads, num_loops, num_done
        )
        return MultiplyAdds(seconds, int(num_done.value))

    def _check(self, num_threads: int) -> None:
        assert self._handle is not None, "the machine is closed"
        assert 1 <= num_threads <= self.num_threads, f"{num_threads} of {self.num_threads} threads"
