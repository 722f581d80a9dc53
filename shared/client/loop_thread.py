"""An event loop on a thread of its own: what blocks outside runs there."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from slipstream.shared.errors import SlipstreamError

T = TypeVar("T")

_INTERRUPT_S = 10.0
_STOP_S = 10.0


class LoopStoppedError(SlipstreamError):
    """The loop has stopped, or stopped while work ran on it."""

    code = "loop_stopped"


class LoopThread:
    """
    Runs coroutines for any number of threads; a context manager.

    It works beside a loop that runs already, as in a notebook, since it has its own. Between
    coroutines it goes on, so that connections are kept alive while a person thinks.
    """

    def __init__(
        self, name: str, stopped: Callable[[], SlipstreamError] = LoopStoppedError
    ) -> None:
        """`stopped` makes what is raised for work that comes when the loop has stopped."""
        self._stopped = stopped
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self.is_stopped = False
        # A daemon: whoever forgets to close a client can still leave the program.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:  # Any: a coroutine's send type
        """
        Return the result of a coroutine, or raise what it raises.

        An interrupted wait (Ctrl-C) cancels it, and does not return before it has ended; a second
        interruption is not waited for. Raises what `stopped` makes when the loop has stopped, or
        stops meanwhile.
        """
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(lambda done: self._pass_on(done, outcome))

        def end() -> None:
            for task in tasks:
                task.cancel()
            if not tasks:
                # Interrupted before it was begun.
                work.close()
                outcome.cancel()

        try:
            self._soon(begin, work)
            return outcome.result()
        except BaseException:
            if not (outcome.done() or self.is_stopped):
                self._loop.call_soon_threadsafe(end)
                concurrent.futures.wait({outcome}, _INTERRUPT_S)
            raise

    def stop(self) -> None:
        """Cancel what still runs, and end the thread. May be called again."""
        with self._lock:
            if not self.is_stopped:
                self.is_stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def _soon(self, begin: Callable[[], None], work: Coroutine[Any, Any, T]) -> None:
        with self._lock:
            if self.is_stopped:
                work.close()
                raise self._stopped()
            self._loop.call_soon_threadsafe(begin)

    def _pass_on(self, task: "asyncio.Task[T]", outcome: "concurrent.futures.Future[T]") -> None:
        if task.cancelled():
            outcome.set_exception(self._stopped())
        elif (error := task.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_end_others())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_STOP_S / 2)
