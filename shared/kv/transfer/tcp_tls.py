"""TLS beneath the frames of the TCP plane: handshake and short messages on the event loop."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def secured(
    sock: socket.socket, context: ssl.SSLContext | None, *, is_server: bool
) -> socket.socket:
    """
    Return the connection, under TLS where there is a context.

    The given socket must not be used any more. Raises OSError, and has closed the socket then.
    """
    if context is None:
        return sock
    wrapped = context.wrap_socket(sock, server_side=is_server, do_handshake_on_connect=False)
    try:
        await _when_ready(wrapped, wrapped.do_handshake)
    except BaseException:
        wrapped.close()
        raise
    return wrapped


async def send_all(sock: socket.socket, payload: bytes) -> None:
    """Send a few bytes from the event loop. Raises OSError."""
    if not isinstance(sock, ssl.SSLSocket):
        await asyncio.get_running_loop().sock_sendall(sock, payload)
        return
    rest = memoryview(payload)
    while rest:
        num_sent = await _when_ready(sock, partial(sock.send, rest))
        rest = rest[num_sent:]


async def receive_some(sock: socket.socket, max_num_bytes: int) -> bytes:
    """Return what comes next, b"" at the end. Raises OSError."""
    if not isinstance(sock, ssl.SSLSocket):
        return await asyncio.get_running_loop().sock_recv(sock, max_num_bytes)
    return await _when_ready(sock, partial(sock.recv, max_num_bytes))


async def _when_ready(sock: ssl.SSLSocket, work: Callable[[], T]) -> T:
    """Call until it need not wait: either direction may have to, whatever is to be done."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return work()
        except ssl.SSLWantReadError:
            add, remove = loop.add_reader, loop.remove_reader
        except ssl.SSLWantWriteError:
            add, remove = loop.add_writer, loop.remove_writer
        ready: asyncio.Future[None] = loop.create_future()
        number = sock.fileno()
        add(number, _set, ready)
        try:
            await ready
        finally:
            remove(number)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def why_distrusted(error: OSError) -> str | None:
    """Return why no other try can help: one end's certificate is not what the other wants."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted here: {error.verify_message}"
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    if reason is not None and "ALERT" in reason:
        return f"it does not trust the certificate of this host: {reason}"
    if reason is not None and ("WRONG_VERSION" in reason or "RECORD_LAYER" in reason):
        return f"it speaks no TLS, or another version: {reason}"
    return None
