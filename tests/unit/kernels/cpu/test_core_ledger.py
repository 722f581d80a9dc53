"""Processes share the cores of a host through one file."""

import concurrent.futures
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.kernels.cpu import loader
from slipstream.shared.model.native_runner import NativeRunner

from .native_models import TinyModel, open_runner, rows, tiny_config

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
TOKENS = list(range(1, 200))
TABLE = list(range(1, 9))
_CORE = struct.Struct("<IIIxxxxq40x")  # user, home, wanted, last use of a core: one cache line
Opened = Callable[[Path | None], NativeRunner]
_BUSY = "while True: pass"
_ANOTHER = 77  # a process that no longer lives: nobody holds its byte of the file

pytestmark = [
    pytest.mark.skipif(not loader.available_levels(), reason="the native kernels were not built"),
    pytest.mark.skipif(sys.platform != "linux", reason="cores are shared on Linux only"),
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel.random(tiny_config()).write(tmp_path_factory.mktemp("packed") / "w", "int8")


@pytest.fixture
def opened(packed: Path) -> Iterator[Opened]:
    """Open runners that share cores; end their threads afterwards and let this one run anywhere."""
    runners: list[NativeRunner] = []

    def open_one(ledger: Path | None) -> NativeRunner:
        runner = open_runner(packed, tiny_config(), "int8", num_threads=len(CORES))
        runners.append(runner)
        if ledger is not None:
            assert runner.share_cores(ledger)
        return runner

    yield open_one
    for runner in runners:
        runner.close()
    os.sched_setaffinity(0, CORES)


def step(runner: NativeRunner) -> np.ndarray:
    return runner.forward([rows(TOKENS, 0, TABLE, num_logits=1)])


def cores_in(ledger: Path) -> dict[int, tuple[int, int, int, int]]:
    content = ledger.read_bytes()
    return {core: _CORE.unpack_from(content, core * _CORE.size) for core in CORES}


def put(ledger: Path, core: int, user: int, home: int, last_use_us: int) -> None:
    with ledger.open("r+b") as file:
        file.seek(core * _CORE.size)
        file.write(_CORE.pack(user, home, 0, last_use_us))


def test_each_process_has_a_home_and_nothing_is_held_between_steps(
    opened: Opened, tmp_path: Path
) -> None:
    ledger = tmp_path / "cores"
    runners = [opened(ledger) for _ in CORES]
    for runner in runners:
        step(runner)

    found = cores_in(ledger)

    assert len(CORES) == len({home for _, home, _, _ in found.values()} - {0})
    assert {0} == {user for user, _, _, _ in found.values()}
    assert all(last_use > 0 for _, _, _, last_use in found.values())


def test_a_home_is_free_again_when_its_process_has_ended(opened: Opened, tmp_path: Path) -> None:
    ledger = tmp_path / "cores"
    runner = opened(ledger)

    runner.close()

    assert {0} == {home for _, home, _, _ in cores_in(ledger).values()}


def test_sharing_changes_no_bit(opened: Opened, tmp_path: Path) -> None:
    expected = step(opened(None))

    found = step(opened(tmp_path / "cores"))

    assert np.array_equal(found, expected)


def test_what_a_dead_process_held_is_taken_from_it(opened: Opened, tmp_path: Path) -> None:
    """A process that was killed inside a step holds its cores in the file for good."""
    ledger = tmp_path / "cores"
    runner = opened(ledger)
    for core in CORES:
        put(ledger, core, _ANOTHER, cores_in(ledger)[core][1], 0)

    started = time.monotonic()
    step(runner)

    assert time.monotonic() - started < 1.0
    home = next(core for core, (_, home, _, _) in cores_in(ledger).items() if home != 0)
    assert 0 == cores_in(ledger)[home][0]


@pytest.mark.skipif(len(CORES) < 2, reason="there is no neighbour to borrow from")  # two cores
def test_an_idle_core_is_borrowed_and_a_busy_neighbour_keeps_its_own(
    opened: Opened, tmp_path: Path
) -> None:
    ledger = tmp_path / "cores"
    runner, _neighbour = opened(ledger), opened(ledger)
    homes = {home: core for core, (_, home, _, _) in cores_in(ledger).items() if home != 0}
    core = homes[max(homes)]  # the neighbour came second
    now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    put(ledger, core, 0, max(homes), now_us + 10_000_000)
    step(runner)
    kept = pinned_cores()
    put(ledger, core, 0, max(homes), 0)
    step(runner)
    borrowed = pinned_cores()

    assert core not in kept
    assert core in borrowed


@pytest.mark.skipif(len(CORES) < 2, reason="there is no second core to give up")  # two cores
@pytest.mark.timeout(60)
def test_beside_a_crowd_that_knows_no_ledger_one_core_is_enough(
    opened: Opened, tmp_path: Path
) -> None:
    """Two threads that wait for each other at every barrier would take many times as long."""
    ledger = tmp_path / "cores"
    runner = opened(ledger)
    assert comes_true(lambda: len(CORES) == most_cores_taken(runner, ledger), 10)

    crowd = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(2 * len(CORES))]
    try:
        assert comes_true(lambda: 1 == most_cores_taken(runner, ledger), 30)
    finally:
        for each in crowd:
            each.kill()
            each.wait()


def comes_true(is_true: Callable[[], bool], timeout_s: float) -> bool:
    """Try until it is so; False when it did not come true in time."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if is_true():
            return True
    return False


def most_cores_taken(runner: NativeRunner, ledger: Path) -> int:
    """Return how many cores the steps of a while hold at most, as seen between samples."""
    found = 0
    end_s = time.monotonic() + 0.5
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        while time.monotonic() < end_s:
            stepping = pool.submit(step, runner)
            while not stepping.done():
                users = [user for user, _, _, _ in cores_in(ledger).values() if user != 0]
                found = max(found, len(users))
            stepping.result()
    return found


def pinned_cores() -> set[int]:
    """Return the cores that some thread of this process is bound to."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        allowed = os.sched_getaffinity(int(task.name))
        if len(allowed) == 1:
            found |= allowed
    return found
