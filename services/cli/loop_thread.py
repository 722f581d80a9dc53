"""An event loop in a thread of its own, for a command whose main thread waits for a person."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from slipstream.shared.lifecycle import cancel_all

T = TypeVar("T")

_END_S = 3.0  # what cancelled work may take to end


class WorkCancelledError(Exception):
    """Ctrl-C has ended the work."""


class LoopThread:
    """
    Runs coroutines for the main thread; a context manager.

    Between them the loop goes on, so that connections are kept alive while a person thinks.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(TimeoutError, KeyboardInterrupt):
            asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        if not self._thread.is_alive():
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Return what the work returns.

        Ctrl-C cancels it, and WorkCancelledError is raised once it has ended; a second one is
        passed on at once.
        """
        ended: concurrent.futures.Future[asyncio.Task[T]] = concurrent.futures.Future()
        started = asyncio.run_coroutine_threadsafe(_task_of(work, ended), self._loop)
        try:
            return ended.result().result()
        except (KeyboardInterrupt, SystemExit) as error:
            self._loop.call_soon_threadsafe(started.result(_END_S).cancel)
            concurrent.futures.wait([ended], _END_S)
            if isinstance(error, SystemExit):
                raise
            raise WorkCancelledError from error


async def _end_others() -> None:
    await cancel_all(asyncio.all_tasks() - {asyncio.current_task()})


async def _task_of(
    work: Coroutine[Any, Any, T], ended: "concurrent.futures.Future[asyncio.Task[T]]"
) -> "asyncio.Task[T]":
    task = asyncio.ensure_future(work)
    task.add_done_callback(ended.set_result)
    return task
