"""The supervisor with real processes and a real NATS server, over services that do no work."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from slipstream.services.cli.nats_server import NatsServer
from slipstream.services.cli.run_directory import open_run_directory, sweep
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.lifecycle import Status

pytestmark = pytest.mark.nats

_DRIVER = Path(__file__).with_name("stand_in_stack.py")
_NAMES = {"scheduler", "kv", "prefill", "decode-1", "decode-2", "draft"}


@dataclass
class _Stack:
    process: subprocess.Popen[str]
    base: Path
    nats_url: str = ""
    log: list[str] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        (run_dir,) = self.base.iterdir()
        return run_dir

    def status_of(self, name: str) -> Status:
        content = (self.run_dir / "status" / f"{name}.json").read_bytes()
        return msgspec.json.decode(content, type=Status)

    def pids(self) -> dict[str, int]:
        """Return the process ids of all children, NATS included."""
        (ports_file,) = (self.run_dir / "nats").glob("*.ports")
        pids = {name: self.status_of(name).pid for name in _NAMES}
        return {**pids, "nats": int(ports_file.stem.rpartition("_")[2])}


@pytest.fixture
def start_stack(tmp_path: Path) -> Iterator[Callable[..., _Stack]]:
    started: list[_Stack] = []

    def start(manner: str = "normal", *, is_ready: bool = True) -> _Stack:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_DRIVER), str(tmp_path / "base"), manner],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack = _Stack(process, tmp_path / "base")
        started.append(stack)
        # Read along, or a full pipe would stop the supervisor.
        threading.Thread(target=_collect, args=(stack,), daemon=True).start()
        if is_ready:
            assert process.stdout is not None
            stack.nats_url = process.stdout.readline().strip()
            assert stack.nats_url, stack.log
        return stack

    yield start
    for stack in started:
        stack.process.kill()
        stack.process.wait(10)
        assert stack.process.stdout is not None
        stack.process.stdout.close()


def _collect(stack: _Stack) -> None:
    assert stack.process.stderr is not None
    with stack.process.stderr as stderr:
        stack.log.extend(stderr)


def _is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in ("Z", "X")


def _wait_until(is_true: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError, ValueError, msgspec.DecodeError):
            if is_true():
                return True
        time.sleep(0.02)
    return False


def _survivors(pids: dict[str, int]) -> dict[str, int]:
    return {name: pid for name, pid in pids.items() if _is_alive(pid)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_everything_and_leaves_nothing(
    start_stack: Callable[..., _Stack], number: signal.Signals
) -> None:
    stack = start_stack()
    pids = stack.pids()
    assert (stack.run_dir / "arena" / "arena.1").exists()
    began_s = time.monotonic()

    stack.process.send_signal(number)
    status = stack.process.wait(10)

    assert 0 == status
    assert time.monotonic() - began_s < 5
    assert {} == _survivors(pids)
    assert not stack.base.exists()


def test_workers_end_before_what_they_need(start_stack: Callable[..., _Stack]) -> None:
    """Workers drain while scheduler and KV manager still answer, and these while NATS does."""
    stack = start_stack("stubborn")
    pids = stack.pids()

    stack.process.terminate()
    assert _wait_until(lambda: not _is_alive(pids["decode-1"]))
    workers = {name: pids[name] for name in ("prefill", "decode-1", "decode-2", "draft")}
    others = {name: pids[name] for name in ("scheduler", "kv", "nats")}
    _wait_until(lambda: not _survivors(workers), 0.5)

    assert {} == _survivors(workers)
    assert others == _survivors(others)
    stack.process.wait(10)
    assert {} == _survivors(pids)


def test_children_that_hear_no_signal_are_killed_in_time(
    start_stack: Callable[..., _Stack],
) -> None:
    stack = start_stack("stubborn")
    pids = stack.pids()
    began_s = time.monotonic()

    stack.process.terminate()
    stack.process.wait(10)

    assert time.monotonic() - began_s < 5.2
    assert {} == _survivors(pids)
    assert not stack.base.exists()


def test_a_second_signal_ends_everything_at_once(start_stack: Callable[..., _Stack]) -> None:
    stack = start_stack("stubborn")
    pids = stack.pids()
    stack.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    began_s = time.monotonic()

    stack.process.send_signal(signal.SIGINT)
    stack.process.wait(10)

    assert time.monotonic() - began_s < 1.5
    assert {} == _survivors(pids)
    assert not stack.base.exists()


def test_children_end_with_a_killed_supervisor_and_the_next_start_cleans_up(
    start_stack: Callable[..., _Stack],
) -> None:
    stack = start_stack()
    pids, left = stack.pids(), stack.run_dir

    stack.process.kill()

    assert _wait_until(lambda: not _survivors(pids))
    assert (left / "arena" / "arena.1").exists()
    second = start_stack()
    assert not left.exists()
    assert second.run_dir.exists()


def test_two_stacks_of_one_user_leave_each_other_alone(
    start_stack: Callable[..., _Stack],
) -> None:
    first = start_stack()
    run_dir = first.run_dir

    second = start_stack()
    second.process.terminate()
    second.process.wait(10)

    assert [run_dir] == list(first.base.iterdir())
    assert _NAMES | {"nats"} == _survivors(first.pids()).keys()


@pytest.mark.parametrize("name", ["scheduler", "kv", "prefill", "decode-2", "draft"])
def test_a_killed_child_is_started_again(start_stack: Callable[..., _Stack], name: str) -> None:
    stack = start_stack()
    before = stack.pids()

    os.kill(before[name], signal.SIGKILL)

    def is_back() -> bool:
        status = stack.status_of(name)
        return status.pid != before[name] and status.state == "ready"

    assert _wait_until(is_back)
    after = stack.pids()
    assert {name} == {each for each in before if before[each] != after[each]}


def test_a_killed_nats_server_comes_back_where_its_clients_look_for_it(
    start_stack: Callable[..., _Stack],
) -> None:
    stack = start_stack()
    pid = stack.pids()["nats"]

    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        files = (stack.run_dir / "nats").glob("*.ports")
        fresh = [each for each in files if not each.stem.endswith(f"_{pid}")]
        return bool(fresh) and stack.nats_url in fresh[0].read_text()

    assert _wait_until(is_back)


def test_a_child_that_never_comes_up_fails_the_start_with_its_last_words(
    start_stack: Callable[..., _Stack],
) -> None:
    stack = start_stack("broken", is_ready=False)

    status = stack.process.wait(20)

    assert 1 == status
    assert _wait_until(lambda: "  no such model: nowhere\n" in stack.log)
    assert any("ended 3 times before it was ready" in line for line in stack.log)
    assert not stack.base.exists()


def test_a_taken_port_is_an_error_with_two_ways_out(start_stack: Callable[..., _Stack]) -> None:
    stack = start_stack()
    port = int(stack.nats_url.rpartition(":")[2])

    with pytest.raises(ConfigurationError, match=rf"port {port} .*--nats .*--port"):
        NatsServer(stack.base, port)


def test_a_directory_whose_lock_is_held_is_never_swept(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with open_run_directory(base) as run:
        assert [] == sweep(base)
        assert run.arena_dir.is_dir()
        assert 0o700 == run.path.stat().st_mode & 0o777

    assert not base.exists()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "base").symlink_to(target)

    with (
        pytest.raises(ConfigurationError, match="belongs to somebody else"),
        open_run_directory(tmp_path / "base"),
    ):
        pass
