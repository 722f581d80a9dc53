"""
GET /metrics over HTTP, on the event loop of the service that it tells of.

One question a connection. A client that asks wrongly, slowly or not at all costs a connection for a
few seconds, of which there are few: the service itself never waits for it.
"""

import asyncio
import contextlib
import errno
from collections.abc import Callable
from http import HTTPStatus
from typing import Self

import structlog

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.lifecycle import cancel_all

log = structlog.get_logger()

PATH = "/metrics"
MAX_NUM_CONNECTIONS = 16
EXCHANGE_S = 5.0  # question and answer together
_MAX_HEAD_BYTES = 8192
_PLAIN = "text/plain; charset=utf-8"
_METHODS = ("GET", "HEAD")


class MetricsEndpoint:
    """Answers with what `render` returns; `url` says where."""

    def __init__(self, render: Callable[[], bytes], content_type: str, exchange_s: float) -> None:
        self.url = ""
        self._render = render
        self._content_type = content_type
        self._exchange_s = exchange_s
        self._server: asyncio.Server | None = None
        self._exchanges: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls,
        render: Callable[[], bytes],
        content_type: str,
        host: str,
        port: int,
        exchange_s: float = EXCHANGE_S,
    ) -> Self:
        """Listen; port 0 means a free one. Raises ConfigurationError."""
        endpoint = cls(render, content_type, exchange_s)
        try:
            endpoint._server = await asyncio.start_server(
                endpoint._serve, host, port, limit=_MAX_HEAD_BYTES
            )
        except OSError as error:
            raise ConfigurationError(_trouble(host, port, error)) from error
        bound_port = endpoint._server.sockets[0].getsockname()[1]
        endpoint.url = f"http://{f'[{host}]' if ':' in host else host}:{bound_port}{PATH}"
        return endpoint

    async def close(self) -> None:
        """Listen no more and hang up on everybody."""
        if self._server is not None:
            self._server.close()
        if self._exchanges:
            await cancel_all(self._exchanges)
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._exchange_s):
                    await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        is_full = len(self._exchanges) >= MAX_NUM_CONNECTIONS
        self._exchanges.add(task)
        try:
            async with asyncio.timeout(self._exchange_s):
                writer.write(
                    _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
                    if is_full
                    else await self._answer(reader)
                )
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            log.debug("metrics_client_lost", error=str(error) or type(error).__name__)
        finally:
            self._exchanges.discard(task)
            # Whoever doesn't read what is left must not keep it here.
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        """Return the answer to the question that comes, headers and all."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return _text(status, f"the request's head may have {_MAX_HEAD_BYTES} bytes")
        method, path = _question(head)
        if method is None or path is None:
            return _text(HTTPStatus.BAD_REQUEST, "no HTTP request")
        if method not in _METHODS:
            allowed = ", ".join(_METHODS)
            status = HTTPStatus.METHOD_NOT_ALLOWED
            return _text(status, f"only {allowed}", {"Allow": allowed})
        if path.partition("?")[0] != PATH:
            return _text(HTTPStatus.NOT_FOUND, f"only {PATH}", has_body=method == "GET")
        try:
            body = self._render()
        except Exception:
            log.exception("metrics_failed")
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "the metrics could not be read")
        return _response(HTTPStatus.OK, body, self._content_type, has_body=method == "GET")


def _question(head: bytes) -> tuple[str | None, str | None]:
    """Return method and path; None for what is no request of HTTP/1."""
    with contextlib.suppress(ValueError):
        line = head.partition(b"\r\n")[0].decode("ascii")
        method, path, version = line.split(" ")
        if version in ("HTTP/1.0", "HTTP/1.1") and path.startswith("/"):
            return method, path
    return None, None


def _text(
    status: HTTPStatus,
    words: str,
    headers: dict[str, str] | None = None,
    *,
    has_body: bool = True,
) -> bytes:
    return _response(status, f"{words}\n".encode(), _PLAIN, headers, has_body=has_body)


def _response(
    status: HTTPStatus,
    body: bytes,
    content_type: str,
    headers: dict[str, str] | None = None,
    *,
    has_body: bool,
) -> bytes:
    all_headers = {
        "Content-Type": content_type,
        "Content-Length": str(len(body)),
        "Connection": "close",
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    line = f"HTTP/1.1 {status.value} {status.phrase}\r\n"
    return f"{line}{head}\r\n".encode() + (body if has_body else b"")


def _trouble(host: str, port: int, error: OSError) -> str:
    where = f"--metrics-port {port} on {host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken; choose another, or 0 for a free one"
    return f"{where} can't be listened on ({error.strerror or error}); see --metrics-host"
