"""Start children, wait until they are ready, start again what dies, and stop all in order."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable
from typing import Self

from slipstream.services.cli.backoff import Backoff
from slipstream.services.cli.child import Child, ChildSpec, LogLine, start_child
from slipstream.shared.errors import SlipstreamError

READY_DEADLINE_S = 120.0
MAX_NUM_FAILED_STARTS = 3
_POLL_S = 0.02
_KILL_S = 1.0  # a killed process that is still there by then hangs in the kernel

# Seconds after the first signal at which what still runs is killed: workers, scheduler and KV
# manager, NATS. A clean stop takes far less.
STOP_DEADLINES_S = (3.5, 4.3, 4.7)

Report = Callable[[str], None]


class StackError(SlipstreamError):
    """A child does not come up; its last log lines follow the first line."""

    code = "stack_failed"

    def __init__(self, name: str, what: str, tail: Iterable[str]) -> None:
        self.name = name
        lines = list(tail) or ["(it logged nothing)"]
        super().__init__("\n  ".join([f"{name} {what}; its last log lines:", *lines]))


class Supervisor:
    """Owns the children. Use it in the main thread, and as a context manager: leaving stops all."""

    def __init__(
        self,
        *,
        on_line: LogLine,
        report: Report,
        ready_deadline_s: float = READY_DEADLINE_S,
        stop_deadlines_s: tuple[float, ...] = STOP_DEADLINES_S,
    ) -> None:
        self._on_line = on_line
        self._report = report
        self._ready_deadline_s = ready_deadline_s
        self._stop_deadlines_s = stop_deadlines_s
        self._keepers: list[_Keeper] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # A signal that comes now must not leave the stop half done.
        stopping = asyncio.create_task(self.stop())
        while not stopping.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(stopping)

    async def start(self, specs: Iterable[ChildSpec]) -> None:
        """Start children and return when all are ready. Raises StackError."""
        fresh = [_Keeper(spec, self._on_line, self._report) for spec in specs]
        self._keepers += fresh
        for keeper in fresh:
            keeper.start()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while waiting := [keeper for keeper in fresh if not keeper.is_ready]:
            self._check(waiting, loop.time() - began)
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """End the children phase by phase, each with SIGTERM, and SIGKILL at its deadline."""
        for keeper in self._keepers:
            keeper.forbid_restart()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for phase, deadline_s in enumerate(self._stop_deadlines_s):
            members = [each for each in self._keepers if each.spec.stop_phase == phase]
            await _end(members, signal.SIGTERM, max(0.0, began + deadline_s - loop.time()))
            await _end(members, signal.SIGKILL, _KILL_S)

    def kill(self) -> None:
        """End everything now."""
        for keeper in self._keepers:
            keeper.forbid_restart()
            keeper.send(signal.SIGKILL)

    def _check(self, waiting: list["_Keeper"], elapsed_s: float) -> None:
        """Raise StackError when one of them won't come up."""
        for keeper in waiting:
            if keeper.num_failed_starts >= MAX_NUM_FAILED_STARTS:
                what = f"ended {keeper.num_failed_starts} times before it was ready"
                raise StackError(keeper.spec.name, what, keeper.tail)
        if elapsed_s > self._ready_deadline_s:
            what = f"was not ready within {self._ready_deadline_s:g} s"
            raise StackError(waiting[0].spec.name, what, waiting[0].tail)


class _Keeper:
    """Keeps one child running until it is told to let it end."""

    def __init__(self, spec: ChildSpec, on_line: LogLine, report: Report) -> None:
        self.spec = spec
        self.num_failed_starts = 0
        self.is_ready = False
        self._tail: list[str] = []
        self._on_line = on_line
        self._report = report
        self._child: Child | None = None
        self._is_ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_signal: signal.Signals | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._keep())

    @property
    def tail(self) -> list[str]:
        """The last log lines of the child, or of the one before it while it is silent."""
        lines = list(self._child.tail) if self._child is not None else []
        return lines or self._tail

    def forbid_restart(self) -> None:
        """Let the child end for good."""
        self._is_ending.set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child, also to one that is just being started."""
        self._last_signal = number
        if self._child is not None:
            self._child.send(number)

    async def wait_ended(self) -> None:
        """Wait until there is no child and there will be none."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _keep(self) -> None:
        backoff = Backoff()
        while not self._is_ending.is_set():
            lifetime_s = 0.0
            try:
                child = await start_child(self.spec, self._on_line)
            except OSError as error:
                self._tail = [f"{self.spec.command[0]}: {error.strerror}"]
                self.num_failed_starts += 1
            else:
                await self._watch(child)
                lifetime_s = child.lifetime_s
            await self._pause(backoff.delay_after(lifetime_s))

    async def _watch(self, child: Child) -> None:
        self._child = child
        if self._last_signal is not None:
            child.send(self._last_signal)
        polling = asyncio.create_task(self._await_ready(child))
        status = await child.wait()
        polling.cancel()
        was_ready, self.is_ready = self.is_ready, False
        self._tail = list(child.tail)
        if self._is_ending.is_set():
            return
        if status == 0 and was_ready:
            self._report(f"{self.spec.name} ended as it was told; it is not started again")
            self.forbid_restart()
            return
        self.num_failed_starts += not was_ready
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        self._report(f"{self.spec.name} ended with {how} after {child.lifetime_s:.1f} s")

    async def _await_ready(self, child: Child) -> None:
        while not child.is_ready():  # noqa: ASYNC110 - another process sets it
            await asyncio.sleep(_POLL_S)
        self.is_ready = True
        self._report(f"{self.spec.name} is ready ({child.lifetime_s:.1f} s)")

    async def _pause(self, delay_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._is_ending.wait()


async def _end(keepers: list[_Keeper], number: signal.Signals, timeout_s: float) -> None:
    """Send a signal to the children that still run and wait for their end, or the timeout."""
    endings = [asyncio.ensure_future(keeper.wait_ended()) for keeper in keepers]
    if not endings:
        return
    await asyncio.sleep(0)
    for keeper, ending in zip(keepers, endings, strict=True):
        if not ending.done():
            keeper.send(number)
    _, pending = await asyncio.wait(endings, timeout=timeout_s)
    for ending in pending:
        ending.cancel()
