"""Threads that pump blocks: awaited to their end, whatever happens to whoever waits."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def run_to_its_end(
    threads: ThreadPoolExecutor, work: Callable[[], T], stop: Callable[[], None]
) -> T:
    """
    Run work in a thread and return what it returns.

    A cancellation calls `stop`, which must make the work end soon, and takes effect only then: the
    memory that the work writes to is its caller's again afterwards.
    """
    job = threads.submit(work)
    done = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if not job.cancel():
            stop()
            await _outwait(done)
        raise


async def _outwait(done: "asyncio.Future[T]") -> None:
    while not done.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([done])
    if not done.cancelled():
        done.exception()  # looked at: nobody is left to hear of it
