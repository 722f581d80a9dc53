"""The HTTP server on an event loop that isn't its own: no signals, no logs, connections to cut."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.exchange import CONNECTION, JSON, reset
from slipstream.shared.errors import ConfigurationError

_TICK_S = 1.0
_BACKLOG = 4096
_KEEP_ALIVE_S = 75
# Unread bytes of a connection at which its writer waits. Small: they are memory of a slow reader.
_HIGH_WATER_BYTES = 32 * 1024
_SEND_BUFFER_BYTES = 32 * 1024  # which the system doubles


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """What a connection may take while nothing is computed for it."""

    stall_s: float  # a finished answer of which nothing is read is given up
    head_s: float = 15.0  # for the head of a request, and for what is left of one that is answered
    max_head_bytes: int = 32 * 1024


class _Bounded:
    """Tells the application which connection it talks on, and ends those that keep it waiting."""

    # Any, here and below: of a protocol of uvicorn, to which this is mixed in.
    app_state: dict[str, Any]
    cycle: Any
    transport: Any
    limits: ConnectionLimits

    def connection_made(self, transport: Any) -> None:
        """Take a connection."""
        super().connection_made(transport)  # type: ignore[misc] # the protocol's own
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self.app_state = {**self.app_state, CONNECTION: transport}
        self._loop = asyncio.get_running_loop()
        self._num_head_bytes = 0
        self._clock = self._loop.call_later(self.limits.head_s, self._end_if_late)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget it."""
        self._clock.cancel()
        super().connection_lost(error)  # type: ignore[misc] # as above

    def data_received(self, data: bytes) -> None:
        """Take bytes; of a head only so many, and not for long."""
        known, was_head = self.cycle, self._awaits_head()
        super().data_received(data)  # type: ignore[misc] # as above
        if self.cycle is not known:
            self._num_head_bytes = 0
            self._clock.cancel()
        elif was_head and self._awaits_head():  # else they were the end of a body
            if not self._num_head_bytes and known is not None:
                self._restart_clock()
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self.limits.max_head_bytes:
                self._refuse_head()

    def on_response_complete(self) -> None:
        """Wait neither for ever until it is read, nor for what is left of its request."""
        self._restart_clock()
        self._loop.call_later(self.limits.stall_s, self._end_if_unread, self.cycle, self._unread)
        super().on_response_complete()  # type: ignore[misc] # as above

    @property
    def _unread(self) -> int:
        size: int = self.transport.get_write_buffer_size()
        return size

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _awaits_head(self) -> bool:
        """Tell whether what comes next is the head of a request, or more of one."""
        raise NotImplementedError

    def _restart_clock(self) -> None:
        self._clock.cancel()
        self._clock = self._loop.call_later(self.limits.head_s, self._end_if_late)

    def _end_if_late(self) -> None:
        if self._is_answering:
            self._restart_clock()  # what came too early is looked at afterwards
        elif self.cycle is None or self._num_head_bytes or not self._awaits_head():
            self.transport.abort()

    def _end_if_unread(self, cycle: Any, num_bytes: int) -> None:
        """End a connection whose last answer waits, unless some of it was read meanwhile."""
        left = self._unread
        if not left or self.cycle is not cycle:
            return
        if left >= num_bytes:
            reset(self.transport)
        else:
            self._loop.call_later(self.limits.stall_s, self._end_if_unread, cycle, left)

    def _refuse_head(self) -> None:
        if self._is_answering or self.transport.is_closing():
            self.transport.abort()
            return
        limit = self.limits.max_head_bytes
        error = ApiError("head_too_large", f"the head of a request is above {limit} bytes")
        phrase = HTTPStatus(error.status).phrase
        head = f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: {JSON}\r\nconnection: close\r\n"
        head += f"content-length: {len(error.body)}\r\n\r\n"
        self.transport.write(head.encode() + error.body)
        self.transport.close()


class _BoundedH11(_Bounded, H11Protocol):
    """In Python."""

    def _awaits_head(self) -> bool:
        return self.conn.their_state is h11.IDLE


def _protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return the faster parser's protocol where it is installed."""
    base = _BoundedH11 if find_spec("httptools") is None else _bounded_httptools()
    return type(base.__name__, (base,), {"limits": limits})


def _bounded_httptools() -> type[asyncio.Protocol]:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415 - optional

    class _BoundedHttpTools(_Bounded, HttpToolsProtocol):
        """In C. It limits nothing by itself, trailers behind a body neither."""

        _is_in_head = True
        _num_field_bytes = 0

        def _awaits_head(self) -> bool:
            return self._is_in_head

        def on_message_begin(self) -> None:
            self._num_field_bytes = 0
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            self._num_field_bytes += len(name) + len(value)
            if self._num_field_bytes > self.limits.max_head_bytes:
                self._refuse_head()
                raise ValueError("too large")  # which ends the parsing
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._is_in_head = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._is_in_head = True
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            if not self.transport.is_closing():
                super().send_400_response(msg)

    return _BoundedHttpTools


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    def end(self) -> None:
        """Have the server end soon."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Look once a second, for the date: ten times wakes an idle process for nothing."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process: see `shared/lifecycle.py`."""
        yield


class HttpServer:
    """Listens from `start` to `stop`."""

    def __init__(
        self,
        app: Any,  # Any: an ASGI application
        host: str,
        port: int,
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = ""
        self._scheme = "http" if tls is None else "https"
        self._host = host
        self._port = port
        config = uvicorn.Config(
            app,
            http=_protocol(limits),
            h11_max_incomplete_event_size=2 * limits.max_head_bytes,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        config.load()
        config.ssl = tls  # made by us, of files that were checked
        self._server = _Server(config)
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ConfigurationError for a port that can't be had."""
        self._socket = _bind(self._host, self._port)
        port = self._socket.getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{self._scheme}://{host}:{port}"
        self._task = asyncio.create_task(self._server.serve([self._socket]))

    async def wait(self) -> None:
        """Return when the server has ended, which it does only when it is told to."""
        assert self._task is not None, "started before it is waited for"
        await asyncio.shield(self._task)

    def refuse_connections(self) -> None:
        """Take no new connection; those that are there go on."""
        for each in getattr(self._server, "servers", []):
            each.close()

    async def stop(self, timeout_s: float) -> None:
        """End what is left of connections, then the server."""
        self._server.end()
        if self._task is not None:
            _, pending = await asyncio.wait({self._task}, timeout=timeout_s)
            for task in pending:
                task.cancel()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Frames are small and urgent: none waits for the acknowledgement of the one before.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What the system keeps for a slow reader: left to itself it grows to megabytes for each.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        bound.bind((host, port))
        # From here on connections wait for the server's loop to take them.
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise ConfigurationError(_trouble(host, port, error)) from error
    bound.settimeout(0)
    return bound


def _trouble(host: str, port: int, error: OSError) -> str:
    where = f"--http-port {port} on {host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken; choose another, or 0 for a free one"
    return f"{where} can't be listened on ({error.strerror or error}); see --http-host"
