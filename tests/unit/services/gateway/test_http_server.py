"""Connections that keep the server waiting: with half a head, and with an answer not read."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from slipstream.services.gateway import http_server
from slipstream.services.gateway.http_server import ConnectionLimits, HttpServer

_DEADLINE_S = 20.0
_ESTABLISHED = 1  # of TCP
_LARGE_BYTES = 8 * 1024 * 1024
_ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SHORT = ConnectionLimits(stall_s=0.2, head_s=0.2, max_head_bytes=4096)
PATIENT = ConnectionLimits(stall_s=60.0, head_s=60.0, max_head_bytes=4096)


@pytest.fixture(params=["httptools", "h11"])
def _each_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "h11":
        monkeypatch.setattr(http_server, "find_spec", lambda _name: None)


def app_of(answer: bytes) -> Any:  # Any: an ASGI application
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        length = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": answer})

    return app


@asynccontextmanager
async def connected(
    limits: ConnectionLimits, answer: bytes = b"hello"
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    server = HttpServer(app_of(answer), "127.0.0.1", 0, limits)
    await server.start()
    where = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1024)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            yield reader, writer
    finally:
        writer.transport.abort()
        await server.stop(5.0)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Return what comes before the connection ends, by an end or a reset."""
    found = b""
    try:
        while part := await reader.read(65536):
            found += part
    except ConnectionError:
        pass
    return found


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_ASK)
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    assert b"hello" == await reader.readexactly(5)


@pytest.mark.usefixtures("_each_parser")
@pytest.mark.parametrize("num_before", [0, 1])
async def test_a_head_that_does_not_end_is_given_up(num_before: int) -> None:
    async with connected(SHORT) as (reader, writer):
        for _ in range(num_before):
            await answered(reader, writer)
        writer.write(b"GET / HTTP/1.1\r\nHo")

        assert b"" == await until_closed(reader)


@pytest.mark.usefixtures("_each_parser")
@pytest.mark.parametrize("num_before", [0, 1])
async def test_a_head_has_a_largest_size(num_before: int) -> None:
    async with connected(PATIENT) as (reader, writer):
        for _ in range(num_before):
            await answered(reader, writer)
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        writer.write(b"x" * (PATIENT.max_head_bytes + 1))

        assert b"431 Request Header Fields Too Large" in await until_closed(reader)


async def test_what_follows_a_body_counts_too() -> None:
    async with connected(PATIENT) as (reader, writer):
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\na\r\n0\r\n")
        writer.write(b"".join(b"X-%d: %s\r\n" % (each, b"y" * 100) for each in range(60)))

        await until_closed(reader)  # which it would not be for a minute


@pytest.mark.usefixtures("_each_parser")
async def test_who_asks_now_and_then_keeps_the_connection() -> None:
    async with connected(SHORT) as (reader, writer):
        await answered(reader, writer)
        await asyncio.sleep(3 * SHORT.head_s)

        await answered(reader, writer)


@pytest.mark.usefixtures("_each_parser")
async def test_what_is_left_of_an_answered_request_must_come() -> None:
    async with connected(SHORT) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")

        assert b"hello" in await until_closed(reader)


@pytest.mark.usefixtures("_each_parser")
async def test_an_answer_that_nobody_reads_is_given_up() -> None:
    async with connected(SHORT, b"x" * _LARGE_BYTES) as (reader, writer):
        connection: socket.socket = writer.get_extra_info("socket")
        writer.write(_ASK)
        # The stream's own limit is small: it reads that much and stops.
        await reader.readuntil(b"\r\n\r\n")
        while connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED:
            await asyncio.sleep(0.02)
