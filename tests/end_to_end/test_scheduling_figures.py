"""
The programs behind the figures of scheduling run and stay near what docs/benchmarks.md records.

What causes them is tested where it happens.
"""

from pathlib import Path

import pytest

from . import figures
from .figures import ROOM

pytestmark = [pytest.mark.slow, pytest.mark.nats, pytest.mark.timeout(300)]


def test_ten_thousand_that_wait_cost_nobody_anything(tmp_path: Path) -> None:
    by_policy = figures.results(tmp_path, "waiting_queue.py", "--samples", "3000")

    assert {"fcfs", "priority", "sjf", "deadline", "fair"} == by_policy.keys()
    for verbs in by_policy.values():
        assert max(each["p99"] for each in verbs.values()) <= ROOM * 50


def test_the_scheduler_leaves_the_cores_to_the_workers(tmp_path: Path) -> None:
    """A ratio of times of one process: it needs room for neighbours all the same."""
    shares = figures.results(tmp_path, "scheduler_cpu.py", "--seconds", "8")

    assert 0 < shares["scheduler"] <= 3 * 15


@pytest.mark.model
@pytest.mark.usefixtures("packed_int4")
def test_cancelled_prompts_keep_nobody_waiting(tmp_path: Path) -> None:
    medians = figures.medians(tmp_path, "head_of_line.py", "--rounds", "3", "--format", "int4")

    for route in ("remote", "local"):
        waited = medians[f"{route}: first token after the last cancel"]
        assert waited - medians[f"{route}: first token on an idle stack"] <= ROOM * 100
        assert medians[f"{route}: until all blocks are free"] <= ROOM * 1000
