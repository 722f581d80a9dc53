"""Ask for blocks until all are there: what breaks on the way is asked for again."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from slipstream.shared.errors import (
    DeadlineExceededError,
    DisconnectedError,
    NoRespondersError,
    ProtocolError,
)
from slipstream.shared.kv.transfer.messages import Refused
from slipstream.shared.kv.transfer.plane import (
    Deadline,
    Fetched,
    TransferBrokenError,
    TransferError,
    TransferIncompatibleError,
    TransferRefusedError,
    TransferTimeoutError,
)
from slipstream.shared.kv.transfer.progress import Progress


class BusyError(Exception):
    """The source has no room for another transfer now."""


# After these another try can succeed.
PASSING = (
    OSError,  # TimeoutError included
    ProtocolError,
    BusyError,
    NoRespondersError,
    DisconnectedError,
    DeadlineExceededError,
)


def error_of(refused: Refused) -> TransferError | BusyError:
    """Return what a refusal means for whoever asked."""
    match refused.reason:
        case "busy":
            return BusyError(refused.message)
        case "incompatible":
            return TransferIncompatibleError(refused.message)
        case _:
            return TransferRefusedError(refused.reason, refused.message)


async def fetch_in_turn(
    room: asyncio.Semaphore,
    progress: Progress,
    ask: Callable[[Progress, Deadline], Awaitable[None]],
    address: str,
    deadline_s: float,
) -> Fetched:
    """
    Wait for room among the transfers that run, then ask until no block is missing.

    `ask` sends one question and takes its answer. Raises TransferTimeoutError or
    TransferBrokenError, by what happened last, at the deadline; else what `ask` raises and no other
    try can mend.
    """
    deadline = Deadline(deadline_s)
    await _take_turn(room, deadline)
    try:
        await ask_until_complete(partial(ask, progress, deadline), progress, deadline, address)
    finally:
        room.release()
    return progress.fetched


async def _take_turn(room: asyncio.Semaphore, deadline: Deadline) -> None:
    try:
        async with asyncio.timeout(deadline.left()):
            await room.acquire()
    except TimeoutError as error:
        raise TransferTimeoutError(f"no turn within {deadline.seconds:g} s") from error


async def ask_until_complete(
    ask: Callable[[], Awaitable[None]], progress: Progress, deadline: Deadline, address: str
) -> None:
    """Call `ask` until no block is missing. Raises as `fetch_in_turn`."""
    while not progress.is_complete:
        try:
            await ask()
        except PASSING as error:
            pause_s = progress.pause_s()
            if deadline.remaining_s <= pause_s:
                raise _at_the_end(error, address, deadline) from error
            await asyncio.sleep(pause_s)


def _at_the_end(error: Exception, address: str, deadline: Deadline) -> TransferError:
    what = f"{address}: {str(error) or type(error).__name__}"
    if isinstance(error, TimeoutError | DeadlineExceededError):
        return TransferTimeoutError(f"no whole transfer within {deadline.seconds:g} s from {what}")
    return TransferBrokenError(f"{what}; not mended within {deadline.seconds:g} s")
