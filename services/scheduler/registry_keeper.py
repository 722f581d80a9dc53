"""
The bucket of worker records is there: it lies in the server's memory, and goes with it.

Workers may not make it. Who may make a stream says which subjects it captures, also others'.
"""

import asyncio

import structlog

from slipstream.shared.bus.bus import Bus
from slipstream.shared.errors import SlipstreamError

log = structlog.get_logger()

_INTERVAL_S = 2.0  # as often as workers put their records


async def keep_registry(bus: Bus) -> None:
    """Look for the bucket for ever, and make it where it is missing."""
    while True:
        await asyncio.sleep(_INTERVAL_S)
        await keep_registry_once(bus)


async def keep_registry_once(bus: Bus) -> bool:
    """Make the bucket where it is missing; tell whether it was, and is there now."""
    try:
        return await bus.registry().ensure()
    except SlipstreamError as error:
        log.warning("registry_missing", error=str(error))
        return False
