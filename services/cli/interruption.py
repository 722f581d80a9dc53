"""Signals of a command: the first ends it in order, a second one at once."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from slipstream.shared.client.loop_thread import LoopThread

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """What the signals of one command have asked for so far."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.at_once: list[Callable[[], None]] = []  # what a second signal does

    async def guard(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do the work; the first signal cancels it, and the result is None."""
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number, task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.number is None:
                raise
            return None
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int, task: "asyncio.Future[Any]") -> None:  # Any: any result
        if self.number is not None:
            for stop in self.at_once:
                stop()
            return
        self.number = number
        task.cancel()


class WorkCancelledError(Exception):
    """Ctrl-C has ended the work."""


def run_interruptibly(loop: LoopThread, work: Coroutine[Any, Any, T]) -> T:
    """
    Return what the work returns. Any: a coroutine's send type.

    Ctrl-C cancels it, and WorkCancelledError is raised once it has ended; a second one is passed on
    at once.
    """
    has_ended = threading.Event()

    async def noted() -> T:
        try:
            return await work
        finally:
            has_ended.set()

    try:
        return loop.run(noted())
    except KeyboardInterrupt as error:
        if has_ended.is_set():
            raise WorkCancelledError from error
        raise
