"""Readers of streams over HTTP that cost next to nothing: bytes are counted, not read."""

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

PATH = "/v1/completions"
_EVENT = b"data: {"
_END = b"[DONE]"
_ANSWER, _SERVED = b"HTTP/1.1 ", b"HTTP/1.1 200 "
_SLOW_BUFFER_BYTES = 4096
_SLOW_REST_S = 30.0  # between two looks of a slow reader at what has come, which fills its buffer


class Reader(asyncio.Protocol):
    """Asks for one stream after the other on one connection, and notes when events came."""

    def __init__(self, request: bytes) -> None:
        self.times_s: list[float] = []  # at which events came, of the stream that runs
        self.gaps_s: list[float] = []  # between those within one stream
        self.num_events = 0
        self.has_begun = asyncio.Event()
        self.is_lost = False
        self.refusal = b""  # what came in place of a stream
        self._request = request
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport), "a connection of TCP"
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count; ask again where a stream has ended."""
        if data.startswith(_ANSWER) and not data.startswith(_SERVED):
            self.refusal = data
            self.has_begun.set()
        num_events = data.count(_EVENT)
        if num_events:
            now_s = time.perf_counter()
            if self.times_s:
                self.gaps_s.append(now_s - self.times_s[-1])
            self.times_s.append(now_s)
            self.num_events += num_events
            self.has_begun.set()
        if _END in data and self._transport is not None:
            self.times_s.clear()
            self._transport.write(self._request)

    def connection_lost(self, _error: Exception | None) -> None:
        """Take note: nothing here should close it."""
        self.is_lost = True

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()


class SlowReader(Reader):
    """Takes a few kilobytes now and then, whatever there is."""

    def data_received(self, data: bytes) -> None:
        """Count, then rest."""
        super().data_received(data)
        if self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(_SLOW_REST_S, self._look)

    def _look(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


def request_of(url: str, body: dict[str, Any]) -> bytes:
    """Return the bytes of a request for a stream. Any: JSON."""
    content = json.dumps({**body, "stream": True}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def open_readers(
    url: str, body: dict[str, Any], number: int, kind: type[Reader] = Reader, spread: int = 0
) -> list[Reader]:
    """
    Connect so many readers; each asks with a seed of its own. Any: JSON.

    Answers are up to `spread` tokens shorter or longer, each reader's always alike: else all would
    end, and begin again, in the same step.
    """
    where = urlsplit(url)
    loop = asyncio.get_running_loop()
    readers = []
    for seed in range(number):
        own = {"seed": seed}
        if spread:
            own["max_tokens"] = body["max_tokens"] - spread + 2 * spread * seed // number
        reader = kind(request_of(url, {**body, **own}))
        connection = socket.socket()
        connection.setblocking(False)  # noqa: FBT003 - as the standard library has it
        if kind is SlowReader:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        await loop.sock_connect(connection, (where.hostname, where.port))
        await loop.create_connection(lambda made=reader: made, sock=connection)
        readers.append(reader)
    return readers


def gaps_ms(readers: Sequence[Reader]) -> list[float]:
    """Return the gaps of all readers in order of length, and forget them."""
    found = sorted(1000 * gap for reader in readers for gap in reader.gaps_s)
    for reader in readers:
        reader.gaps_s.clear()
    return found


def num_events(readers: Sequence[Reader]) -> int:
    """Return how many events have come to all readers."""
    return sum(reader.num_events for reader in readers)
