"""Ask decode workers for blocks while others wait for some."""

import asyncio

import structlog

from slipstream.services.kv_manager.pressure import Pressure
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.subjects import DECODE
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.kv import Reclaim, Reclaimed

log = structlog.get_logger()

_INTERVAL_S = 0.02  # of refusals that one round serves
_ANSWER_S = 1.0


class Reclaimer:
    """Sends what is to be reclaimed, on a timer of its own."""

    def __init__(self, bus: Bus, pressure: Pressure) -> None:
        self._bus = bus
        self._pressure = pressure
        self._refused = asyncio.Event()
        pressure.on_refused = self._refused.set

    async def run(self) -> None:
        """Ask for ever, a round at a time: whoever still waits is refused again and noted anew."""
        while True:
            await self._refused.wait()
            await asyncio.sleep(_INTERVAL_S)
            self._refused.clear()
            reclaims = self._pressure.reclaims()
            if reclaims:
                await asyncio.gather(*map(self._reclaim, reclaims))

    async def _reclaim(self, message: Reclaim) -> None:
        try:
            answer: Reclaimed = await call(
                self._bus, DECODE, message, timeout_s=_ANSWER_S, worker_id=message.worker_id
            )
        except SlipstreamError as error:
            log.info("reclaim_unanswered", asked_worker_id=message.worker_id, error=str(error))
            return
        self._pressure.reclaimed(message, answer)
