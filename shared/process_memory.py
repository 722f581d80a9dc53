"""Memory that a process holds beside what it uses: the allocator is told not to keep it."""

import contextlib
import ctypes
import gc
import sys

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
