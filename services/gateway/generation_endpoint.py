"""The two endpoints that generate: let in, read, run, and say what went wrong; never hang."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from slipstream.services.gateway.chunks import error_events
from slipstream.services.gateway.errors import ApiError, api_error_of
from slipstream.services.gateway.exchange import CutOffError, Exchange, Receive, Scope, Send
from slipstream.services.gateway.gateway import Gateway
from slipstream.services.gateway.generation import Generation
from slipstream.services.gateway.plans import Asking, Plan
from slipstream.services.gateway.spans import (
    describe_generation,
    end_span,
    headers_for,
    start_span,
)
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.openai.statuses import CLIENT_CLOSED
from slipstream.shared.telemetry.spans import Span

log = structlog.get_logger()

_LAST_S = 1.0  # what is left to do when an answer is complete
_MAX_INLINE_BYTES = 16 * 1024  # a body so short is read in less time than others notice

ReadPlan = Callable[[bytes, Asking], Plan]


class GenerationEndpoint:
    """An ASGI application for one path."""

    def __init__(self, gateway: Gateway, path: str, read_plan: ReadPlan) -> None:
        self._gateway = gateway
        self._path = path
        self._read_plan = read_plan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; a client that goes ends it."""
        gateway = self._gateway
        exchange = Exchange(scope, receive, send, gateway.config.stall_timeout_s)
        span = start_span(gateway.tracer, self._path, exchange)
        gateway.num_running += 1
        status, error = CLIENT_CLOSED, None
        try:
            error = await self._guarded(exchange, span)
            status = error.status if error is not None else exchange.status or CLIENT_CLOSED
        finally:
            gateway.leave()
            gateway.metrics.answered(self._path, status)
            end_span(span, status, error)
            log.info(
                "http_answered",
                trace_id=exchange.trace_id or span.context.trace_id,
                client_request_id=exchange.request_id,
                path=self._path,
                status=status,
                code=error.code if error is not None else None,
            )

    async def _guarded(self, exchange: Exchange, span: Span) -> ApiError | None:
        """Answer; return the error that the client was told of, by a status or in its stream."""
        try:
            await self._answer(exchange, span)
        except SlipstreamError as error:
            found = api_error_of(error)
        except CutOffError:
            self._gateway.metrics.cut_off()
            return ApiError("cancelled", "the client took nothing for too long")
        except Exception:
            log.exception("request_failed", client_request_id=exchange.request_id)
            found = ApiError("internal_error", "the gateway failed; its log says how")
        else:
            return None
        if found.status != CLIENT_CLOSED or not exchange.is_gone:
            with suppress(CutOffError):
                await _tell(exchange, found)
        return found

    async def _answer(self, exchange: Exchange, span: Span) -> None:
        gateway = self._gateway
        began_s = time.monotonic()
        tenant = gateway.admit(exchange)
        config = gateway.config
        body = await exchange.read_body(config.max_body_bytes, config.body_timeout_s)
        asking = Asking(exchange.request_id, tenant)
        is_short = len(body) <= _MAX_INLINE_BYTES
        plan = (
            self._read_plan(body, asking)
            if is_short
            else await asyncio.to_thread(self._read_plan, body, asking)
        )
        generation = Generation(gateway, exchange, plan, began_s)
        try:
            await self._run(exchange, generation, span)
        finally:
            if span.is_recording:
                describe_generation(span, generation)

    async def _run(self, exchange: Exchange, generation: Generation, span: Span) -> None:
        """Run until the end, the client's or our own."""
        gateway = self._gateway
        headers = headers_for(gateway.tracer, span, exchange)
        work = asyncio.create_task(generation.run(headers))
        gone = asyncio.create_task(exchange.until_gone())
        ended = asyncio.create_task(gateway.has_to_end.wait())
        try:
            await asyncio.wait({work, gone, ended}, return_when=asyncio.FIRST_COMPLETED)
            if exchange.is_complete:
                await asyncio.wait({work}, timeout=_LAST_S)
            if work.done():
                work.result()
                return
        finally:
            await cancel_all((work, gone, ended))
        if exchange.is_gone:
            gateway.metrics.disconnected()
            raise ApiError("cancelled", "the client has gone")
        raise ApiError("draining", "the gateway is shutting down")


async def _tell(exchange: Exchange, error: ApiError) -> None:
    """Tell a client of an error: by a status, or where the answer has begun in its stream."""
    if exchange.status is None:
        await exchange.fail(error)
    elif exchange.is_stream:
        await exchange.send_events(error_events(error), is_last=True)
