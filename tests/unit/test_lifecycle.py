"""The life of a process: heartbeat, signals, failure, and an end with its supervisor."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from slipstream.shared import lifecycle
from slipstream.shared.lifecycle import STALE_AFTER_S, Status, StatusFile, read_status

is_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")

# A service that says what happens to it; the argument chooses its trouble.
SERVICE = """
import asyncio, sys
from pathlib import Path
import structlog
from slipstream.shared.lifecycle import run_service

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

class Plain:
    role = "kv"
    worker_id = "kv-1"
    metrics_url = "http://127.0.0.1:9/metrics"
    http_url = None
    detail = ""

    def __init__(self):
        self.trouble = sys.argv[1]

    async def start(self):
        if self.trouble == "start":
            raise RuntimeError("can't start")
        if self.trouble == "slow start":
            print("starting", flush=True)
            await asyncio.sleep(60)
        print("started", flush=True)

    async def wait(self):
        if self.trouble == "wait":
            raise RuntimeError("can't go on")
        if self.trouble == "end":
            return
        await asyncio.sleep(60)

    async def stop(self):
        print("stopping", flush=True)
        if self.trouble == "slow stop":
            await asyncio.sleep(60)
        print("stopped", flush=True)

sys.exit(run_service(Plain, Path(sys.argv[2])))
"""

# Starts a child that ends with it, tells its id, and waits.
SUPERVISOR = """
import os, subprocess, sys, time
child = (
    "import sys, time\\n"
    "from slipstream.shared.lifecycle import end_with_parent\\n"
    "end_with_parent(int(sys.argv[1]))\\n"
    "print('tied', flush=True)\\n"
    "time.sleep(60)\\n"
)
process = subprocess.Popen([sys.executable, "-c", child, str(os.getpid())], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(60)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """A function that runs code in a process of its own, which is gone after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None

    return process.stdout.readline().strip()


def until(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so()


def has_ended(pid: int) -> bool:
    """Tell whether a process is gone; one that nobody has waited for yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


def test_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "made" / "decode.json"
    file = StatusFile(path, "decode", "decode-1")
    file.write()
    first = read_status(path)
    file.state = "ready"
    file.write()
    second = read_status(path)

    assert first is not None
    assert ("decode", "decode-1", os.getpid(), "starting") == (
        first.role,
        first.worker_id,
        first.pid,
        first.state,
    )
    assert second is not None
    assert "ready" == second.state
    assert second.metrics_url is None
    assert [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_clock_that_is_set_stops_no_heart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    path = tmp_path / "kv.json"
    StatusFile(path, "kv", "kv-1").write()
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + jump_s * 10**9)

    assert read_status(path) is not None


def test_status_of_a_stopped_heart_is_none(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    written_ns = time.monotonic_ns() - int((STALE_AFTER_S + 1) * 1e9)
    path.write_bytes(msgspec.json.encode(Status("kv", "kv-1", 1, "ready", written_ns)))

    assert read_status(path) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"\xff", b'{"role": "kv"}', b'{"role": "cook"}']
)
def test_status_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kv.json"
    path.write_bytes(content)

    assert read_status(path) is None


def test_status_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_status(tmp_path / "kv.json") is None
    assert read_status(tmp_path) is None


def test_status_file_can_be_removed_twice_and_left_out(tmp_path: Path) -> None:
    file = StatusFile(tmp_path / "kv.json", "kv", "kv-1")
    file.write()
    file.remove()
    file.remove()
    StatusFile(None, "kv", "kv-1").write()
    StatusFile(None, "kv", "kv-1").remove()

    assert [] == list(tmp_path.iterdir())


async def test_heart_beats_on_after_a_write_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "HEARTBEAT_S", 0.01)
    folder = tmp_path / "status"
    folder.write_text("a file where the folder should be")
    path = folder / "kv.json"
    beat = asyncio.create_task(StatusFile(path, "kv", "kv-1").beat())
    await asyncio.sleep(0.05)
    folder.unlink()
    is_back = await asyncio.to_thread(until, lambda: read_status(path) is not None)
    beat.cancel()

    assert is_back


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_a_service_in_order(start: Start, tmp_path: Path, number: int) -> None:
    path = tmp_path / "kv.json"
    process = start(SERVICE, "none", str(path))
    started = next_line(process)
    is_ready = until(lambda: (status := read_status(path)) is not None and status.state == "ready")
    ready = read_status(path)
    process.send_signal(number)
    said, _ = process.communicate(timeout=10)

    assert ("started", "stopping\nstopped\n") == (started, said)
    assert is_ready
    assert ready is not None
    assert "http://127.0.0.1:9/metrics" == ready.metrics_url
    assert 0 == process.returncode
    assert not path.exists()


def test_signal_stops_a_service_that_is_still_starting(start: Start, tmp_path: Path) -> None:
    process = start(SERVICE, "slow start", str(tmp_path / "kv.json"))
    assert "starting" == next_line(process)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=10)

    assert (0, "stopping\nstopped\n") == (process.returncode, said)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("start", "can't start"), ("wait", "can't go on"), ("end", "ended")],
)
def test_failed_service_is_stopped_and_exits_1(
    start: Start, tmp_path: Path, trouble: str, reason: str
) -> None:
    path = tmp_path / "kv.json"
    process = start(SERVICE, trouble, str(path))
    said, logged = process.communicate(timeout=10)

    assert 1 == process.returncode
    assert "stopping\nstopped\n" in said
    assert reason in said + logged
    assert not path.exists()


def test_second_signal_ends_the_process_at_once(start: Start, tmp_path: Path) -> None:
    process = start(SERVICE, "slow stop", str(tmp_path / "kv.json"))
    lines = [next_line(process)]
    process.send_signal(signal.SIGTERM)
    lines.append(next_line(process))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=5)

    assert ["started", "stopping"] == lines
    assert 128 + signal.SIGTERM == process.returncode


@is_linux
def test_child_ends_with_a_parent_that_was_killed(start: Start) -> None:
    supervisor = start(SUPERVISOR)
    pid = int(next_line(supervisor))
    was_alive = not has_ended(pid)
    supervisor.kill()
    supervisor.wait(5)

    assert was_alive
    assert until(lambda: has_ended(pid))


@is_linux
def test_child_of_a_parent_that_is_gone_already_ends_itself(start: Start) -> None:
    code = (
        "from slipstream.shared.lifecycle import end_with_parent\n"
        "end_with_parent(1 << 30)\n"
        "print('alive')\n"
    )
    process = start(code)
    said, _ = process.communicate(timeout=10)

    assert (-signal.SIGKILL, "") == (process.returncode, said)


def test_process_without_a_supervisor_lives_on(start: Start) -> None:
    code = (
        "from slipstream.shared.lifecycle import end_with_parent\n"
        "end_with_parent(None)\n"
        "print('alive')\n"
    )
    process = start(code)
    said, _ = process.communicate(timeout=10)

    assert (0, "alive\n") == (process.returncode, said)


async def test_a_task_that_swallows_its_cancel_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `asyncio.wait_for` may in Python 3.11, when its result comes at the same moment."""

    async def stubborn() -> None:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(100)
        await asyncio.sleep(100)

    monkeypatch.setattr(lifecycle, "CANCEL_AGAIN_S", 0.01)
    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await lifecycle.cancel_all([task])

    assert task.cancelled()
