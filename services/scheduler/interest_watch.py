"""Ask the NATS server for clients that went away, and cancel what they wanted."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog

from slipstream.services.scheduler.answers import Answers
from slipstream.services.scheduler.interest import PROBE_S, InterestBook, Probe
from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.subjects import last_token
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.generate import Cancel

log = structlog.get_logger()

_GONE = "client_gone"


class InterestWatch:
    """Owns the probes; what is done about an absent client is the desk's."""

    def __init__(
        self,
        bus: Bus,
        answers: Answers,
        records: Mapping[RequestId, RequestRecord],
        cancel: Callable[[Cancel], Awaitable[object]],
    ) -> None:
        self._bus = bus
        self._answers = answers
        self._records = records
        self._cancel = cancel
        self._book = InterestBook()
        self._inbox = bus.new_inbox()
        self._num_returns = bus.connection.num_returns

    async def start(self) -> None:
        """Listen for the server's word that nobody listens."""
        await self._bus.subscribe(f"{self._inbox}.*", self._nobody_listens)

    async def loop(self) -> None:
        """Ask once a second, for ever."""
        while True:
            await asyncio.sleep(PROBE_S)
            try:
                await self._ask()
            except SlipstreamError as error:
                log.warning("clients_not_asked", error=str(error))

    async def _ask(self) -> None:
        now = time.monotonic()
        if not self._bus.connection.is_up:
            return
        if self._num_returns != self._bus.connection.num_returns:
            self._num_returns = self._bus.connection.num_returns
            self._book.forget()
        # Most requests are over before anybody needs to be asked.
        old = [
            each
            for each in self._records.values()
            if now - each.arrived_at >= PROBE_S and not each.is_cancelled and each.client_inbox
        ]
        for record in self._book.gone(old, now):
            log.info("client_gone", **record.log_fields)
            await self._cancel(Cancel(request_id=record.request_id, reason=_GONE))
        for probe in self._book.probes(old, now):
            await self._send(probe)

    async def _send(self, probe: Probe) -> None:
        reply = f"{self._inbox}.{probe.key}"
        if probe.record is not None:
            await self._answers.keep_alive(probe.record, reply)
        else:
            await self._bus.publish(probe.subject, b"", reply=reply)

    async def _nobody_listens(self, message: Incoming) -> None:
        if message.is_no_responders:
            self._book.missed(last_token(message.subject), time.monotonic())
