"""Ask for blocks until all are there: what breaks on the way is asked for again."""

import asyncio
from collections.abc import Awaitable, Callable

from slipstream.shared.errors import (
    DeadlineExceededError,
    DisconnectedError,
    NoRespondersError,
    ProtocolError,
)
from slipstream.shared.kv.transfer.messages import Refused
from slipstream.shared.kv.transfer.plane import (
    Deadline,
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


async def take_turn(room: asyncio.Semaphore, deadline: Deadline) -> None:
    """Wait for room among the transfers that run. Raises TransferTimeoutError."""
    try:
        async with asyncio.timeout(deadline.left()):
            await room.acquire()
    except TimeoutError as error:
        raise TransferTimeoutError(f"no turn within {deadline.seconds:g} s") from error


async def ask_until_complete(
    ask: Callable[[], Awaitable[None]], progress: Progress, deadline: Deadline, address: str
) -> None:
    """
    Call `ask`, which sends one question and takes its answer, until no block is missing.

    Raises TransferTimeoutError or TransferBrokenError, by what happened last, at the deadline;
    else what `ask` raises and no other try can mend.
    """
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
