"""
A service whose wall clock a test sets: `time.time` is off by what a mapped file says.

Usage: as the command line of a service, with the file named in the environment. Whatever measures
by the monotonic clock notices nothing.
"""

import mmap
import os
import struct
import time
from pathlib import Path

from slipstream.services.cli.main import main

VARIABLE = "CHAOS_CLOCK"
_OFFSET = struct.Struct("<q")


def set_offset(path: Path, seconds: int) -> None:
    """Put all clocks that follow a file ahead, or back."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(_OFFSET.pack(seconds * 1_000_000_000))


def _follow(path: Path) -> None:
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), _OFFSET.size)
    real_ns = time.time_ns

    def time_ns() -> int:
        return real_ns() + int(_OFFSET.unpack(mapped[:])[0])

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if __name__ == "__main__":
    _follow(Path(os.environ[VARIABLE]))
    main()
