"""One HTTP request and its answer: read within limits, sent piece by piece, cut where need be."""

import asyncio
import contextlib
import re
import secrets
import socket
import struct
from collections.abc import Mapping
from typing import Any

import structlog

from slipstream.services.gateway.errors import ApiError

log = structlog.get_logger()

# Any: ASGI's messages are dictionaries of whatever they hold.
Scope = Any
Receive = Any
Send = Any

JSON = "application/json"
# The second is what curl says of a body unless it is told otherwise.
_BODY_TYPES = (JSON, "application/x-www-form-urlencoded", "")
EVENTS = "text/event-stream; charset=utf-8"
CONNECTION = "slipstream.connection"  # in the scope's state: the transport, to cut it
_MAX_DISCARDED_BYTES = 64 * 1024 * 1024
_DISCARD_S = 2.0
_BODY = "http.response.body"
_MAX_ID_CHARACTERS = 128
_NO_LINGER = struct.pack("ii", 1, 0)
_UNSAFE = re.compile(r"[^!-~]+")


class CutOffError(Exception):
    """The client took nothing for too long, and the connection was cut."""


class Exchange:
    """What an endpoint sees of a request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stall_s: float) -> None:
        self.path_parameters: Mapping[str, str] = scope.get("path_params", {})
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        self.request_id = _request_id(self.headers.get("x-request-id"))
        self.status: int | None = None  # once an answer has begun
        self.is_stream = False
        self.trace_id: str | None = None  # once the request is known under one
        self.is_complete = False  # the answer
        self.is_gone = False  # the client
        self._state = scope.get("state", {})
        self._receive = receive
        self._send = send
        self._stall_s = stall_s

    async def read_body(self, max_num_bytes: int, timeout_s: float) -> bytes:
        """Return the body. Raises ApiError where it is too large, or too slow."""
        kind = self.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in _BODY_TYPES:
            raise ApiError("unsupported_media_type", f"content-type {kind[:64]!r}: send {JSON}")
        coding = self.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):
            # Nothing is ever unpacked: a few bytes could become gigabytes.
            await self._discard()
            raise ApiError(
                "unsupported_media_type",
                f"content-encoding {coding[:64]!r}: send the body as it is",
            )
        announced = self.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > max_num_bytes:
            await self._discard()
            raise _too_large(int(announced[:20]), max_num_bytes)
        pieces: list[bytes] = []
        num_bytes = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        self.is_gone = True
                        raise ApiError("cancelled", "the client has gone")
                    pieces.append(message.get("body", b""))
                    num_bytes += len(pieces[-1])
                    if num_bytes > max_num_bytes:
                        await self._discard()
                        raise _too_large(num_bytes, max_num_bytes)
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError as error:
            raise ApiError("body_timeout", f"the body did not come in {timeout_s:g} s") from error

    async def _discard(self) -> None:
        """
        Read on for a moment what is too much.

        A connection that is closed over unread bytes is reset, and many a client would then never
        see why.
        """
        num_left = _MAX_DISCARDED_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                while num_left > 0:
                    message = await self._receive()
                    num_left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    async def until_gone(self) -> None:
        """Return when the client has closed its connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # It is said of a complete answer too.
        self.is_gone = not self.is_complete

    async def answer(
        self,
        status: int,
        body: bytes,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole answer."""
        length = {"content-length": str(len(body))}
        await self._start(status, content_type, {**length, **(headers or {})})
        await self._out({"type": _BODY, "body": body})

    async def fail(self, error: ApiError) -> None:
        """Answer with an error. After a body that was not read the connection can't be used on."""
        headers = dict(error.headers)
        if error.code in ("message_too_large", "body_timeout"):
            headers["connection"] = "close"
        await self.answer(error.status, error.body, headers=headers)

    async def start_events(self, headers: Mapping[str, str]) -> None:
        """Begin a stream of events."""
        self.is_stream = True
        await self._start(
            200, EVENTS, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        )

    async def send_events(self, events: bytes, *, is_last: bool = False) -> None:
        """Send events, waiting while the client has too many unread. Raises CutOffError."""
        await self._out({"type": _BODY, "body": events, "more_body": not is_last})

    def cut(self) -> None:
        """Close the connection at once, whatever of it was not read."""
        transport = self._state.get(CONNECTION)
        if transport is not None:
            reset(transport)

    async def _start(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        all_headers = {"content-type": content_type, "x-request-id": self.request_id, **headers}
        self.status = status
        await self._out(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (name.encode("latin-1"), value.encode("latin-1"))
                    for name, value in all_headers.items()
                ],
            }
        )

    async def _out(self, message: dict[str, Any]) -> None:
        # Set before: who waits for the client's going hears of the end first.
        self.is_complete = message["type"] == _BODY and not message.get("more_body")
        transport = self._state.get(CONNECTION)
        if transport is not None and not transport.get_write_buffer_size():
            # All was taken so far: it is written without a wait, and needs no clock.
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._stall_s):
                await self._send(message)
        except TimeoutError as error:
            log.info("reader_cut_off", client_request_id=self.request_id, stall_s=self._stall_s)
            self.cut()
            raise CutOffError from error


def reset(transport: Any) -> None:  # Any: asyncio's, or that of another loop
    """
    Reset a connection, instead of ending it.

    The system then keeps nothing for a client that may never read it, and who does read sees that
    this was no end.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def _request_id(given: str | None) -> str:
    """Return the client's name for its request, made safe for logs and headers, or a new one."""
    known = _UNSAFE.sub("", given or "")[:_MAX_ID_CHARACTERS]
    return known or f"req_{secrets.token_hex(12)}"


def _too_large(num_bytes: int, limit: int) -> ApiError:
    return ApiError(
        "message_too_large",
        f"a body of {num_bytes} bytes is above the limit of {limit} bytes (--max-body-bytes)",
    )
