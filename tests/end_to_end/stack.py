"""A whole stack as a person starts it, `slipstream up`, seen and hurt from outside."""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream.services.cli.run_directory import default_base
from slipstream.shared.lifecycle import Status, read_status

SLIPSTREAM = Path(sys.executable).parent / "slipstream"
START_S = 90.0
STOP_S = 10.0
FREEZE_S = 5.0
_MARK = "SLIPSTREAM_TEST_MARK"
# Most tests need no standby.
_DEFAULTS = ("--port", "0", "--http-port", "0", "--scheduler", "1")
_READY = re.compile(r"Slipstream is ready on (nats://\S+)")

LogLine = dict[str, Any]  # Any: JSON


class Stack:
    """`slipstream up` on a free port, in a process of its own."""

    def __init__(self, arguments: list[str], variables: Mapping[str, str], directory: Path) -> None:
        self.mark = secrets.token_hex(8)
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [SLIPSTREAM, "up", *_DEFAULTS, *arguments],
            cwd=directory,
            env=marked_environment(self.mark, variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Read along, or a full pipe would stop the supervisor.
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.nats_url = self._await_ready()

    @property
    def run_dir(self) -> Path:
        """Arena, status files and store of the stack."""
        (run_dir,) = default_base().glob(f"{self.process.pid}-*")
        return run_dir

    @property
    def log(self) -> list[LogLine]:
        """What the services logged, so far."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    @property
    def http_url(self) -> str:
        """Where the stack's gateway serves."""
        status = self.status("gateway")
        assert status is not None, "gateway is not up"
        assert status.http_url is not None, "gateway is not ready"
        return status.http_url

    def status(self, name: str) -> Status | None:
        """Return what a service says of itself; None while it isn't there."""
        return read_status(self.run_dir / "status" / f"{name}.json")

    def pid(self, name: str) -> int:
        """Return the process id of a service that is up."""
        status = self.status(name)
        assert status is not None, f"{name} is not up"
        return status.pid

    def kill(self, name: str) -> int:
        """SIGKILL a service; return the process id that it had."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """A service that stands still while a block runs."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert wait_until(lambda: is_frozen(pid), FREEZE_S), f"{name} doesn't stand still"
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait_restarted(self, name: str, old_pid: int) -> None:
        """Return when another process of that name is ready."""

        def is_back() -> bool:
            status = self.status(name)
            return status is not None and status.pid != old_pid and status.state == "ready"

        assert wait_until(is_back, START_S), f"{name} is not back: {self.lines[-20:]}"

    def stop(self) -> int:
        """End it as Ctrl-C does; return the exit status."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(STOP_S)
        finally:
            self.close()

    def close(self) -> None:
        """End it however it is."""
        self.process.kill()
        self.process.wait(STOP_S)
        self._reader.join(STOP_S)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None, "made above"
            pipe.close()

    def _read_log(self) -> None:
        assert self.process.stderr is not None, "made above"
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def _await_ready(self) -> str:
        # A stack that doesn't come up ends by itself, and its standard output with it.
        assert self.process.stdout is not None, "made above"
        for line in self.process.stdout:
            found = _READY.match(line)
            if found:
                return found[1]
        self.close()
        raise AssertionError("the stack did not come up:\n" + "\n".join(self.lines[-30:]))


@contextlib.contextmanager
def running(
    arguments: list[str], directory: Path, variables: Mapping[str, str] | None = None
) -> Iterator[Stack]:
    """A stack while a block runs; it must then stop cleanly, and is ended however it is."""
    started = Stack(arguments, variables or {}, directory)
    try:
        yield started
        assert 0 == started.stop()
    finally:
        started.close()


def marked_environment(mark: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return our environment without settings of ours, and with a mark that all children carry."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "SLIPSTREAM_")) or name == "SLIPSTREAM_CACHE_DIR"
    }
    return {**kept, **variables, _MARK: mark}


def marked_processes(mark: str) -> dict[int, str]:
    """Return the command lines of the processes that carry a mark and have not ended."""
    wanted = f"{_MARK}={mark}".encode()
    found = {}
    for process in _processes():
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process.name)] = line
    return found


def is_frozen(pid: int) -> bool:
    """Tell whether no thread of a process runs any more."""
    tasks = Path(f"/proc/{pid}/task")
    states = [(each / "stat").read_bytes().rpartition(b") ")[2][:1] for each in tasks.iterdir()]
    return set(states) == {b"T"}


def wait_until(is_true: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; False when it did not come true in time."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if is_true():
            return True
        time.sleep(0.02)
    return is_true()


def _processes() -> Iterator[Path]:
    return (each for each in Path("/proc").iterdir() if each.name.isdecimal())
