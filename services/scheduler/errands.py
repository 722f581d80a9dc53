"""What the desk has done beside its loops: tasks whose failures are told."""

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import structlog

from slipstream.shared.lifecycle import cancel_all

log = structlog.get_logger()

LogFields = Mapping[str, str | int]


class Errands:
    """Runs tasks, and holds them until they are over."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None], log_fields: LogFields | None = None) -> None:
        """Run something; the fields are those of the request that it is for."""
        # Any: a coroutine's send type
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, log_fields or {}))

    async def wait(self, timeout_s: float) -> None:
        """Wait for all of them, or for so long."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)

    async def cancel(self) -> None:
        """End all of them."""
        await cancel_all(self._tasks)

    def _done(self, log_fields: LogFields, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            kind = type(error).__name__
            log.error("task_failed", **log_fields, error=str(error), kind=kind, exc_info=error)
