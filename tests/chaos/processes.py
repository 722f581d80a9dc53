"""Services as processes of their own, which a test freezes and wakes."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.shared.config import KvConfig
from slipstream.shared.lifecycle import read_status
from tests.end_to_end.stack import FREEZE_S, is_frozen, marked_environment, wait_until

_SERVICE = (sys.executable, "-P", "-m", "slipstream.services.cli.main")
_START_S = 60.0
_STOP_S = 10.0


@dataclass(eq=False)
class Process:
    """A service that runs, or stands still."""

    name: str
    role: str
    status_file: Path
    log_file: Path
    process: "subprocess.Popen[bytes]"
    worker_id: str = ""

    def freeze(self) -> None:
        """Stop it wherever it is; return when no thread of it runs any more."""
        self.process.send_signal(signal.SIGSTOP)
        is_still = wait_until(lambda: is_frozen(self.process.pid), FREEZE_S)
        assert is_still, f"{self.name} doesn't stand still"

    def wake(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)


class Processes:
    """Starts services and ends them."""

    def __init__(self, nats_url: str, directory: Path, **variables: object) -> None:
        """`variables` are options of all services, as their environment has them."""
        self.arena_dir = directory / "arena"
        self.kv_config = KvConfig(
            cache_dir=directory / "cache",
            arena_dir=self.arena_dir,
            engine="fake",
            is_test_mode=True,
        )
        self._directory = directory
        shared = {
            "NATS_URL": nats_url,
            "ARENA_DIR": self.arena_dir,
            "CACHE_DIR": self.kv_config.cache_dir,
            "MODEL": "fake",
            "ENGINE": "fake",
            "TEST_MODE": 1,
            "LOG_JSON": 1,
            "DRAIN_S": 2,
            "PARENT_PID": os.getpid(),  # none outlives a test that is killed
            **variables,
        }
        self._environment = marked_environment(
            secrets.token_hex(8), {f"SLIPSTREAM_{name}": str(each) for name, each in shared.items()}
        )
        self.running: list[Process] = []

    def start(self, name: str, role: str, command: Sequence[str | Path] = _SERVICE) -> Process:
        """Start one; it is not ready yet."""
        status_file, log_file = (self._directory / f"{name}.{kind}" for kind in ("json", "log"))
        arguments = [*command, role, "--status-file", status_file]
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                arguments, stdout=log, stderr=log, env=self._environment, cwd=self._directory
            )
        self.running.append(Process(name, role, status_file, log_file, process))
        return self.running[-1]

    def wait_ready(self) -> None:
        """Return when all can take work."""
        deadline_s = time.monotonic() + _START_S
        for each in self.running:
            while (status := read_status(each.status_file)) is None or status.state != "ready":
                assert each.process.poll() is None, each.log_file.read_text()[-2000:]
                assert time.monotonic() < deadline_s, each.log_file.read_text()[-2000:]
                time.sleep(0.02)
            each.worker_id = status.worker_id

    def stop(self) -> None:
        """End them, workers first; each must end by itself and well."""
        for each in reversed(self.running):
            each.wake()
            each.process.terminate()
            assert 0 == each.process.wait(_STOP_S), each.log_file.read_text()[-2000:]

    def close(self) -> None:
        """End them however they are."""
        for each in self.running:
            each.process.kill()
            each.process.wait(_STOP_S)

    @property
    def log(self) -> str:
        """What all have logged."""
        return "".join(each.log_file.read_text(errors="replace") for each in self.running)


@contextlib.contextmanager
def all_frozen(processes: Sequence[Process]) -> Iterator[None]:
    """Let processes stand still while a block runs."""
    for each in processes:
        each.freeze()
    try:
        yield
    finally:
        for each in processes:
            each.wake()
