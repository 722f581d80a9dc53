"""The life of a service process: ready, heartbeat, signals, drain, the end of its supervisor."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import structlog
import uvloop

from slipstream.shared.errors import ServiceDrainedError
from slipstream.shared.messages.common import Role

log = structlog.get_logger()

HEARTBEAT_S = 0.5
STALE_AFTER_S = 5.0
PRIVATE_UMASK = 0o077  # files and sockets are the user's alone, from their first moment
CANCEL_AGAIN_S = 0.2
_PR_SET_PDEATHSIG = 1

State = Literal["starting", "ready", "draining"]


class Status(msgspec.Struct, frozen=True):
    """Content of a status file."""

    role: Role
    worker_id: str
    pid: int
    state: State
    time_ns: int  # of the heartbeat, by the machine's monotonic clock: no one sets that
    metrics_url: str | None = None  # where its metrics are read
    http_url: str | None = None  # where a gateway serves HTTP
    detail: str = ""  # what a ready one is: of schedulers one is active, the others stand by


class Service(Protocol):
    """What a process runs."""

    @property
    def role(self) -> Role:
        """What it does."""

    @property
    def worker_id(self) -> str:
        """Who it is."""

    async def start(self) -> None:
        """Return when the service can take work."""

    async def wait(self) -> None:
        """Return, or raise, only when the service can't go on."""

    async def stop(self) -> None:
        """Drain: leave the registry, finish what runs within the configured time, let go."""


class ServiceProcess(Service, Protocol):
    """A service with what a process has around it."""

    @property
    def metrics_url(self) -> str | None:
        """Where its metrics are read; None where they aren't served, or not yet."""

    @property
    def http_url(self) -> str | None:
        """Where it serves HTTP; None where it doesn't, or not yet."""

    @property
    def detail(self) -> str:
        """What it is at the moment, where that changes; else nothing."""


class StatusFile:
    """A heartbeat that needs no network: health checks and the supervisor read it."""

    def __init__(self, path: Path | None, role: Role, worker_id: str) -> None:
        self._path = path
        self._role: Role = role
        self._worker_id = worker_id
        self.state: State = "starting"
        self.metrics_url: str | None = None
        self.http_url: str | None = None
        self.read_detail: Callable[[], str] = str

    def write(self) -> None:
        """Replace the file in one step, so that a reader never sees half of it."""
        if self._path is None:
            return
        status = Status(
            self._role,
            self._worker_id,
            os.getpid(),
            self.state,
            time.monotonic_ns(),
            self.metrics_url,
            self.http_url,
            self.read_detail(),
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(status))
        fresh.replace(self._path)

    def remove(self) -> None:
        """Take the file away at the end."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def beat(self) -> None:
        """Write for ever: a loop that hangs, like a disk that is full, shows as a stale file."""
        while True:
            try:
                self.write()
            except OSError as error:
                log.warning("status_not_written", error=str(error))
            await asyncio.sleep(HEARTBEAT_S)


def read_status(path: Path) -> Status | None:
    """Return the status, or None when there is none, it is unreadable or its heart stopped."""
    try:
        status = msgspec.json.decode(path.read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError):
        return None
    # What is ahead of now was written before the machine was started.
    is_fresh = 0 <= time.monotonic_ns() - status.time_ns < STALE_AFTER_S * 1e9
    return status if is_fresh else None


def end_with_parent(expected_parent: int | None) -> None:
    """
    Be killed when the supervisor ends, even by SIGKILL.

    `expected_parent` closes the gap between fork and this call: a parent that went away in it is
    noticed by its id.
    """
    if expected_parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != expected_parent:
        os.kill(os.getpid(), signal.SIGKILL)


def run_service(make: Callable[[], ServiceProcess], status_path: Path | None) -> int:
    """
    Run a service until a signal or its own end; return the exit status.

    uvloop takes a fifth less of a core than asyncio's own loop for services that mostly pass
    messages on (docs/benchmarks.md).
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(make, status_path))


async def _run(make: Callable[[], ServiceProcess], status_path: Path | None) -> int:
    stop_asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop_asked, number)
    service = make()
    status = StatusFile(status_path, service.role, service.worker_id)
    beat = asyncio.create_task(status.beat())
    try:
        return await _run_until(service, status, stop_asked)
    finally:
        beat.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beat
        status.remove()


async def _run_until(service: ServiceProcess, status: StatusFile, stop_asked: asyncio.Event) -> int:
    stopping = asyncio.create_task(stop_asked.wait())
    running = asyncio.create_task(_start_and_wait(service, status))
    await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
    status.state = "draining"
    exit_status = 0
    if running.done():
        error = running.exception()
        if not isinstance(error, ServiceDrainedError):
            log.error("service_failed", error=str(error or "ended"), kind=type(error).__name__)
            exit_status = 1
    else:
        running.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await running
    stopping.cancel()
    await service.stop()
    log.info("service_stopped")
    return exit_status


async def _start_and_wait(service: ServiceProcess, status: StatusFile) -> None:
    await service.start()
    status.state = "ready"
    status.metrics_url = service.metrics_url
    status.http_url = service.http_url
    status.read_detail = lambda: service.detail
    status.write()
    log.info("service_ready")
    await service.wait()


async def cancel_all(tasks: Iterable["asyncio.Task[Any]"]) -> None:  # Any: results don't matter
    """Cancel tasks and wait until they have ended; what they raise was logged where it happened."""
    tasks = list(tasks)
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        # Again and again: `wait_for` of Python 3.11 swallows a cancel that meets its result.
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)


def _on_signal(stop_asked: asyncio.Event, number: int) -> None:
    if stop_asked.is_set():
        # A second signal means now.
        os._exit(128 + number)
    stop_asked.set()
