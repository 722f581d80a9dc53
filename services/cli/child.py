"""One child process: started in a group of its own, its output read line by line."""

import asyncio
import collections
import contextlib
import ctypes
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slipstream.shared.lifecycle import PRIVATE_UMASK

PARENT_VARIABLE = "SLIPSTREAM_PARENT_PID"
_PR_SET_PDEATHSIG = 1
_NUM_TAIL_LINES = 12
_MAX_LINE_BYTES = 1024 * 1024
_LAST_LINES_S = 0.3  # what a dead child's output may take to arrive

LogLine = Callable[[str, str], None]  # name of the child, line


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """How a child is started, and how one sees that it can take work."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    is_ready: Callable[[int], bool]  # takes the process id
    stop_phase: int = 0  # workers end first, what they need after them
    is_foreign: bool = False  # does not end with its parent by itself
    # What else is in its environment, asked at each start.
    more_environment: Callable[[], Mapping[str, str]] = dict


@dataclass(eq=False)
class Child:
    """A process that was started."""

    spec: ChildSpec
    process: asyncio.subprocess.Process
    on_line: LogLine
    started_s: float = field(default_factory=time.monotonic)
    tail: collections.deque[str] = field(
        default_factory=lambda: collections.deque(maxlen=_NUM_TAIL_LINES)
    )

    @property
    def lifetime_s(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self.started_s

    @property
    def is_alive(self) -> bool:
        """Whether it has not been seen to end."""
        return self.process.returncode is None

    def is_ready(self) -> bool:
        """Whether it can take work."""
        return self.is_alive and self.spec.is_ready(self.process.pid)

    async def wait(self) -> int:
        """Read the output until the end of the process; return the exit status."""
        reading = asyncio.create_task(self._read())
        try:
            status = await self.process.wait()
            # A grandchild that keeps the pipe open must not keep us.
            await asyncio.wait({reading}, timeout=_LAST_LINES_S)
        finally:
            reading.cancel()
        return status

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child and to what it started; nothing happens once it has ended."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    async def _read(self) -> None:
        stream = self.process.stdout
        assert stream is not None, "children are started with a pipe"
        while True:
            try:
                raw = await stream.readline()
            except ValueError:  # a line above the limit, which is then dropped
                continue
            if not raw:
                return
            line = raw.decode(errors="replace").rstrip("\n")
            self.tail.append(line)
            self.on_line(self.spec.name, line)


async def start_child(spec: ChildSpec, on_line: LogLine) -> Child:
    """
    Start a child. Call it in the main thread.

    The kernel ends the child with the *thread* that forked it, so that thread must live as long as
    the supervisor.
    """
    environment = {**spec.environment, **spec.more_environment(), PARENT_VARIABLE: str(os.getpid())}
    # Before the fork: afterwards nothing may be loaded.
    end_with_parent = _end_with(os.getpid()) if spec.is_foreign else None
    process = await asyncio.create_subprocess_exec(
        *spec.command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        limit=_MAX_LINE_BYTES,
        # A group of its own: Ctrl-C reaches the supervisor alone, which stops all in order.
        process_group=0,
        preexec_fn=end_with_parent,
        umask=PRIVATE_UMASK,  # nats-server's store holds prompts and answers
    )
    return Child(spec, process, on_line)


def _end_with(parent_pid: int) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    return functools.partial(_set_parent_death_signal, ctypes.CDLL(None).prctl, parent_pid)


def _set_parent_death_signal(prctl: Callable[..., int], parent_pid: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
