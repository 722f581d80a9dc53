"""How many cores this process may use."""

import os


def num_cores() -> int:
    """Return the cores that the system lets this process run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
