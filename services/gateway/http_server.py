"""The HTTP server on an event loop that isn't its own: no signals, no logs, connections to cut."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.services.gateway.exchange import CONNECTION
from slipstream.shared.errors import ConfigurationError

_BACKLOG = 4096
_KEEP_ALIVE_S = 75
_FIRST_REQUEST_S = 15.0  # a connection that asks for nothing costs a descriptor so long
# Unread bytes of a connection at which its writer waits. Small: they are memory of a slow reader.
_HIGH_WATER_BYTES = 32 * 1024
_SEND_BUFFER_BYTES = 128 * 1024


class _Told:
    """Tells the application which connection it talks on, and ends those that say nothing."""

    # Any, here and below: of a protocol of uvicorn, to which this is mixed in.
    app_state: dict[str, Any]
    cycle: Any
    transport: Any

    def connection_made(self, transport: Any) -> None:
        """Take a connection."""
        super().connection_made(transport)  # type: ignore[misc] # the protocol's own
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self.app_state = {**self.app_state, CONNECTION: transport}
        asyncio.get_running_loop().call_later(_FIRST_REQUEST_S, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.abort()


class _ToldH11(_Told, H11Protocol):
    """In Python."""


def _protocol() -> type[asyncio.Protocol]:
    """Return the faster parser's protocol where it is installed."""
    if find_spec("httptools") is None:
        return _ToldH11
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415 - optional

    class _ToldHttpTools(_Told, HttpToolsProtocol):
        """In C."""

    return _ToldHttpTools


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process: see `shared/lifecycle.py`."""
        yield


class HttpServer:
    """Listens from `start` to `stop`."""

    def __init__(self, app: Any, host: str, port: int) -> None:  # Any: an ASGI application
        self.url = ""
        self._host = host
        self._port = port
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_protocol(),
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
        )
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ConfigurationError for a port that can't be had."""
        self._socket = _bind(self._host, self._port)
        port = self._socket.getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{host}:{port}"
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
        self._server.should_exit = True
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
