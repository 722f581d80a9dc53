"""The two endpoints that generate: read, ask, answer in one piece or in events; never hang."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress

import msgspec
import structlog

from slipstream.services.gateway.answers import Book, Head, whole_answer
from slipstream.services.gateway.chunks import KEEP_ALIVE, ChunkWriter, error_events
from slipstream.services.gateway.errors import CLIENT_CLOSED, ApiError, api_error_of
from slipstream.services.gateway.exchange import CutOffError, Exchange, Receive, Scope, Send
from slipstream.services.gateway.gateway import Gateway
from slipstream.services.gateway.plans import Asking, Plan
from slipstream.services.gateway.streams import Batch, Streams
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.generate import Finished, TokenFrame

log = structlog.get_logger()

ReadPlan = Callable[[bytes, Asking], Plan]

# Until then a failure can still be told by a status; from then on a client sees that we live.
_QUIET_S = 10.0
_ID_PREFIXES = {"chat": "chatcmpl-", "text": "cmpl-"}
_json = msgspec.json.Encoder().encode


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
        gateway.num_running += 1
        status = CLIENT_CLOSED
        try:
            status = await self._guarded(exchange)
        finally:
            gateway.leave()
            gateway.metrics.answered(self._path, status)

    async def _guarded(self, exchange: Exchange) -> int:
        """Answer; return the status, also of an error that could only be told in the stream."""
        try:
            return await self._answer(exchange)
        except SlipstreamError as error:
            found = api_error_of(error)
        except CutOffError:
            self._gateway.metrics.cut_off()
            return CLIENT_CLOSED
        except Exception:
            log.exception("request_failed", client_request_id=exchange.request_id)
            found = ApiError("internal_error", "the gateway failed; its log says how")
        with suppress(CutOffError):
            await _tell(exchange, found)
        return found.status

    async def _answer(self, exchange: Exchange) -> int:
        gateway = self._gateway
        began_s = time.monotonic()
        tenant = gateway.admit(exchange)
        config = gateway.config
        body = await exchange.read_body(config.max_body_bytes, config.body_timeout_s)
        plan = self._read_plan(body, Asking(exchange.request_id, tenant))
        work = asyncio.create_task(self._serve(exchange, plan, began_s))
        gone = asyncio.create_task(exchange.until_gone())
        ended = asyncio.create_task(gateway.has_to_end.wait())
        try:
            await asyncio.wait({work, gone, ended}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return exchange.status or CLIENT_CLOSED
        finally:
            await cancel_all((work, gone, ended))
        if gone.done() and not gone.cancelled():
            gateway.metrics.disconnected()
            return CLIENT_CLOSED
        raise ApiError("draining", "the gateway is shutting down")

    async def _serve(self, exchange: Exchange, plan: Plan, began_s: float) -> None:
        async with Streams(self._gateway, plan, None) as streams:
            if plan.is_streamed:
                await self._stream(exchange, plan, streams, began_s)
            else:
                await self._collect(exchange, plan, streams)

    async def _collect(self, exchange: Exchange, plan: Plan, streams: Streams) -> None:
        book = Book(plan, keeps_text=True)
        async with aclosing(streams.batches()) as batches:
            async for batch in batches:
                for request, event in batch:
                    match event:
                        case TokenFrame():
                            book.add(request, event)
                        case Finished():
                            book.end(request, event)
        head = self._head(plan, streams)
        answer = whole_answer(book, head, self._gateway.served.texts)
        await exchange.answer(200, _json(answer), headers=_names(streams))

    async def _stream(
        self, exchange: Exchange, plan: Plan, streams: Streams, began_s: float
    ) -> None:
        writer: ChunkWriter | None = None
        kept: Batch = []  # what came before there was anything to begin an answer with
        sent_s = began_s
        async with aclosing(streams.batches()) as batches:
            async for batch in batches:
                now_s = time.monotonic()
                is_late = now_s - sent_s >= _QUIET_S
                if writer is None:
                    kept += batch
                    if not _begins(kept) and not (is_late and streams.first.accepted):
                        continue
                    writer = await self._begin(exchange, plan, streams)
                    self._gateway.metrics.first_byte(now_s - began_s)
                    batch, kept = kept, []  # noqa: PLW2901 - all that came counts
                events = writer.events(batch)
                if events or is_late:
                    await exchange.send_events(events or KEEP_ALIVE)
                    sent_s = now_s
        assert writer is not None, "an ending begins an answer too"
        await exchange.send_events(writer.last(), is_last=True)

    async def _begin(self, exchange: Exchange, plan: Plan, streams: Streams) -> ChunkWriter:
        await exchange.start_events(_names(streams))
        book = Book(plan, keeps_text=False)
        writer = ChunkWriter(book, self._head(plan, streams), self._gateway.served.texts)
        echoed = b"".join(
            writer.echo(request * plan.num_choices + choice, self._text_of(prompt))
            for request, prompt in enumerate(plan.echoed)
            for choice in range(plan.num_choices)
        )
        if echoed:
            await exchange.send_events(echoed)
        return writer

    def _head(self, plan: Plan, streams: Streams) -> Head:
        served, accepted = self._gateway.served, streams.first.accepted
        return Head(
            id=f"{_ID_PREFIXES[plan.kind]}{streams.first.request_id}",
            created=int(time.time()),
            model=served.card.id,
            fingerprint=served.fingerprint,
            seed=accepted.seed if accepted is not None else None,
        )

    def _text_of(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._gateway.served.tokenizer.decode(prompt, skip_special_tokens=False)


def _begins(batch: Batch) -> bool:
    """Tell whether there is something to answer with: words, or an ending without any."""
    return any(isinstance(event, TokenFrame | Finished) for _, event in batch)


def _names(streams: Streams) -> Mapping[str, str]:
    """Return by which names the request is found in traces and logs."""
    accepted = streams.first.accepted
    if accepted is None or accepted.trace_id is None:
        return {}
    return {"x-slipstream-trace-id": accepted.trace_id}


async def _tell(exchange: Exchange, error: ApiError) -> None:
    """Tell a client of an error: by a status, or where the answer has begun in its stream."""
    if exchange.status is None:
        await exchange.fail(error)
    else:
        await exchange.send_events(error_events(error), is_last=True)
