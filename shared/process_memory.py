"""Memory that a process holds beside what it uses: the allocator is told not to keep it."""

import contextlib
import ctypes
import gc
import sys
from pathlib import Path

_M_ARENA_MAX = -8  # of malloc.h


def share_one_heap() -> None:
    """
    Let all threads allocate from one heap; call it before there are any.

    glibc gives each thread a heap of its own, which holds on to megabytes of what the thread needed
    once. They would spare threads a lock, but ours take turns anyway: all but the kernels' hold the
    GIL, and those allocate nothing while they compute.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Give the system what starting has left behind."""
    gc.collect()
    give_back_free()


def give_back_free() -> None:
    """Give the system what is free on the heap, wherever it lies there. Takes a millisecond."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(AttributeError):  # as above
            ctypes.CDLL(None).malloc_trim(0)


def swapped_bytes() -> int | None:
    """Return how much of this process is swapped out; None where the system doesn't say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("VmSwap:"))
    return next((int(kibibytes) * 1024 for kibibytes in found), None)
