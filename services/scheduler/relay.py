"""Tell standbys what becomes of clients' messages, so that they know what a successor must do."""

import asyncio
import time
from collections.abc import Mapping

import msgspec
import structlog

from slipstream.services.scheduler.records import RequestRecord
from slipstream.services.scheduler.shadow import digest_of
from slipstream.services.scheduler.succession import ALONE, Succession
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.subjects import EVENT
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.reports import (
    ForwardedRequest,
    RequestAdmitted,
    RequestsSettled,
)

log = structlog.get_logger()

_FLUSH_S = 0.02  # what was answered by workers is known from their reports, too
_NUM_AT_A_TIME = 32


class Relay:
    """Owns what a standby would need of each open request."""

    def __init__(self, bus: Bus, succession: Succession = ALONE) -> None:
        self._bus = bus
        self._succession = succession
        self._subject = EVENT.subject(role="scheduler")
        self._open: dict[RequestId, tuple[RequestAdmitted, Incoming, float]] = {}
        self._settled: list[RequestId] = []
        self._has_settled = asyncio.Event()

    async def admitted(self, record: RequestRecord, incoming: Incoming) -> None:
        """Say that a message is a request now: before its client, or a worker, hears of it."""
        message = RequestAdmitted(
            scheduler_epoch=self._succession.epoch,
            digest=digest_of(incoming),
            request_id=record.request_id,
            reply=incoming.reply,
            seed=record.request.sampling.seed,
            root_span=record.root.context,
            attempt=record.attempt,
            num_choices=record.request.num_choices,
            is_streamed=record.request.is_streamed,
        )
        self._open[record.request_id] = (message, incoming, record.arrived_at)
        await self._send(message)

    async def refused(self, incoming: Incoming) -> None:
        """Say that a message has its answer and is no request."""
        digests = [digest_of(incoming)]
        await self._send(RequestsSettled(scheduler_epoch=self._succession.epoch, digests=digests))

    async def settled(self, request_id: RequestId) -> None:
        """Say at once that a request has its ending: only we know of it."""
        if self._open.pop(request_id, None) is not None:
            await self._send_settled([request_id])

    def ended(self, request_id: RequestId) -> None:
        """Say soon that a request has its ending."""
        if self._open.pop(request_id, None) is not None:
            self._settled.append(request_id)
            self._has_settled.set()

    async def tell_all(self, attempts: Mapping[RequestId, int]) -> None:
        """Tell a standby that is new of all that is open, message and all."""
        for number, (message, incoming, arrived_at) in enumerate(list(self._open.values())):
            if message.request_id not in self._open:
                continue
            told = ForwardedRequest(
                subject=incoming.subject,
                payload=incoming.payload,
                headers=dict(incoming.headers or {}),
                elapsed_ms=(time.monotonic() - arrived_at) * 1000,
            )
            attempt = attempts.get(message.request_id, message.attempt)
            await self._send(msgspec.structs.replace(message, message=told, attempt=attempt))
            if number % _NUM_AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def loop(self) -> None:
        """Send what can wait a moment, for ever."""
        while True:
            await self._has_settled.wait()
            await asyncio.sleep(_FLUSH_S)
            self._has_settled.clear()
            ids, self._settled = self._settled, []
            await self._send_settled(ids)

    async def _send_settled(self, ids: list[RequestId]) -> None:
        epoch = self._succession.epoch
        await self._send(RequestsSettled(scheduler_epoch=epoch, request_ids=ids))

    async def _send(self, message: RequestAdmitted | RequestsSettled) -> None:
        try:
            await self._bus.publish(self._subject, encode(message))
        except SlipstreamError as error:
            log.warning("standby_not_told", error=str(error))
