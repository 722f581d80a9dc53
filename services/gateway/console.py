"""The web console: a page without a build step, and the events of its live view."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import structlog
from starlette.routing import BaseRoute, Route

from slipstream.services.gateway.chunks import DONE, error_events
from slipstream.services.gateway.errors import ApiError, api_error_of
from slipstream.services.gateway.exchange import CutOffError, Exchange, Receive, Scope, Send
from slipstream.services.gateway.gateway import Gateway
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.openai.statuses import CLIENT_CLOSED

log = structlog.get_logger()

_FILES = Path(__file__).with_name("web")
_PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing inline, in nobody's frame.
_SAFE = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_NOT_MODIFIED = 304
_EVENTS_PATH = "/console/events"


def console_routes(gateway: Gateway) -> list[BaseRoute]:
    """Return what the console is served by."""
    files = [
        Route(f"/console/{path.name}", PageFile(gateway, path), methods=["GET"])
        for path in page_files()
        if path.name != _PAGE
    ]
    page = Route("/", PageFile(gateway, _FILES / _PAGE), methods=["GET"])
    return [page, *files, Route(_EVENTS_PATH, PipelineEvents(gateway), methods=["GET"])]


def page_files() -> Iterator[Path]:
    """Yield the files of the page."""
    return (path for path in sorted(_FILES.iterdir()) if path.suffix in _TYPES)


class PageFile:
    """An ASGI application that answers with a file, read once."""

    def __init__(self, gateway: Gateway, path: Path) -> None:
        self._gateway = gateway
        self._body = path.read_bytes()
        self._type = _TYPES[path.suffix]
        digest = hashlib.sha256(self._body).hexdigest()[:16]
        # Asked for again each time, sent again only after an upgrade.
        self._headers = {**_SAFE, "cache-control": "no-cache", "etag": f'"{digest}"'}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        exchange = Exchange(scope, receive, send, self._gateway.config.stall_timeout_s)
        is_known = exchange.headers.get("if-none-match") == self._headers["etag"]
        status, body = (_NOT_MODIFIED, b"") if is_known else (200, self._body)
        with suppress(CutOffError):
            await exchange.answer(status, body, self._type, self._headers)
        self._gateway.metrics.answered("console", exchange.status or CLIENT_CLOSED)


class PipelineEvents:
    """An ASGI application that streams what goes on until the client goes, or the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send updates."""
        gateway = self._gateway
        exchange = Exchange(scope, receive, send, gateway.config.stall_timeout_s)
        with suppress(CutOffError):
            try:
                await self._serve(exchange)
            except SlipstreamError as error:
                await _tell(exchange, api_error_of(error))
            except Exception:
                log.exception("console_failed", client_request_id=exchange.request_id)
                await _tell(exchange, ApiError("internal_error", "the gateway failed"))
        gateway.metrics.answered(_EVENTS_PATH, exchange.status or CLIENT_CLOSED)

    async def _serve(self, exchange: Exchange) -> None:
        gateway = self._gateway
        gateway.keys.tenant_of(exchange.headers.get("authorization"))
        if gateway.is_draining:
            raise ApiError("draining", "the gateway is shutting down")
        async with gateway.feed.watched() as events:
            work = asyncio.create_task(_send_all(exchange, events))
            gone = asyncio.create_task(exchange.until_gone())
            ended = asyncio.create_task(gateway.has_to_end.wait())
            try:
                await asyncio.wait({work, gone, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_all((work, gone, ended))
            if work.done() and not work.cancelled():
                work.result()
        if gateway.has_to_end.is_set():
            await exchange.send_events(DONE, is_last=True)


async def _tell(exchange: Exchange, error: ApiError) -> None:
    """Tell of an error by a status, or in the stream that has begun: the page shows either."""
    if exchange.status is None:
        await exchange.fail(error)
    elif not exchange.is_complete:
        await exchange.send_events(error_events(error), is_last=True)


async def _send_all(exchange: Exchange, events: AsyncGenerator[bytes, None]) -> None:
    await exchange.start_events({})
    async with aclosing(events):
        async for event in events:
            await exchange.send_events(event)
