"""Processes that are started again whenever they end, and can be killed, frozen and squeezed."""

import asyncio
import contextlib
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slipstream.shared.lifecycle import read_status

_AGAIN_S = 0.2
_STOP_S = 10.0


class Kept:
    """One process after another under one name."""

    def __init__(
        self,
        name: str,
        role: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        log_file: Path,
        is_ready: Callable[[int], bool],
    ) -> None:
        self.name = name
        self.role = role
        self.num_starts = 0
        self.log_file = log_file
        self._command = command
        self._environment = environment
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the process that runs now has been ready."""
        process = self._process
        return process is not None and process.poll() is None and self._is_ready(process.pid)

    @property
    def pid(self) -> int:
        """The process that runs now, or ran last."""
        assert self._process is not None, "started before"
        return self._process.pid

    def start(self) -> None:
        """Keep one running from now on."""
        self._keeper = asyncio.create_task(self._keep())

    async def until_ready(self, timeout_s: float) -> None:
        """Return when it can take work."""
        deadline_s = time.monotonic() + timeout_s
        while not self.is_ready:
            assert time.monotonic() < deadline_s, f"{self.name} is not ready: {self.tail}"
            await asyncio.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has just ended."""
        if self._process is not None:
            self._process.send_signal(number)

    def squeeze(self, num_bytes: int | None) -> None:
        """Let it have no more memory than it has, and so many bytes; None: as much as it likes."""
        limit = resource.RLIM_INFINITY
        with contextlib.suppress(OSError):
            if num_bytes is not None:
                pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[0])
                limit = pages * resource.getpagesize() + num_bytes
            resource.prlimit(self.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

    async def stop(self) -> int:
        """End it as a service manager does; return its exit status."""
        await self._leave()
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        assert self._process is not None, "started before"
        return await asyncio.to_thread(self._process.wait, _STOP_S)

    async def close(self) -> None:
        """End it however it is."""
        await self._leave()
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, _STOP_S)

    @property
    def tail(self) -> str:
        """The last of what it said."""
        return self.log_file.read_text(errors="replace")[-2000:]

    async def _leave(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper

    def _begin(self) -> "subprocess.Popen[bytes]":
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                list(self._command), stdout=log, stderr=log, env=dict(self._environment)
            )

    async def _keep(self) -> None:
        while True:
            self._process = self._begin()
            self.num_starts += 1
            while self._process.poll() is None:
                await asyncio.sleep(0.01)
            await asyncio.sleep(_AGAIN_S)


def says_ready(status_file: Path) -> Callable[[int], bool]:
    """Return a test by the status file of a service."""

    def is_ready(pid: int) -> bool:
        status = read_status(status_file)
        return status is not None and status.pid == pid and status.state == "ready"

    return is_ready


def listens(port: int) -> Callable[[int], bool]:
    """Return a test by whether anybody takes connections."""

    def is_ready(_pid: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return True
        return False

    return is_ready


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
