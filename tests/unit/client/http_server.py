"""A small HTTP server that streams as the gateway does, and misbehaves where a script says so."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

# What a script may hold besides bytes to send and seconds to wait.
HANG = "say nothing more, until the client leaves"
DROP = "break the connection"
Step = bytes | float | str
Script = list[Step]

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 2,
    },
}


@dataclass(frozen=True)
class Request:
    """A request as it came. Any: JSON."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


class HttpServer:
    """Answers each request with the next of its scripts."""

    def __init__(self, *scripts: Script) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.num_left = 0  # clients that left while they were served
        self.num_connections = 0
        self.num_served = 0  # requests now
        self.max_num_served = 0  # at once
        self._scripts = list(scripts)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                self.num_served += 1
                self.max_num_served = max(self.max_num_served, self.num_served)
                await self._play(self._scripts.pop(0), reader, writer)
                self.num_served -= 1
        except ConnectionError:
            self.num_left += 1
        finally:
            writer.close()

    async def _play(
        self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for step in script:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif step == HANG:
                assert not await reader.read(1), "a client says nothing while it reads"
                raise ConnectionResetError
            else:
                writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(*scripts: Script) -> AsyncIterator[HttpServer]:
    """A server while a block runs."""
    made = HttpServer(*scripts)
    server = await asyncio.start_server(made._serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await asyncio.sleep(0.05)  # for handlers to see that their clients have left


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Request(first.split(" ")[1], headers, json.loads(body))


def framed(data: bytes) -> bytes:
    """Return a chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(fields: Mapping[str, Any] | str) -> bytes:
    """Return an event as it travels. Any: JSON."""
    data = fields if isinstance(fields, str) else json.dumps(fields, ensure_ascii=False)
    return framed(f"data: {data}\n\n".encode())


def chunk(text: str, **fields: Any) -> bytes:
    """Return a piece of a chat answer. Any: JSON."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **fields}
    return event({"id": "chatcmpl-1", "model": "m", "choices": [choice]})


ENDING = [
    chunk("", finish_reason="stop"),
    event({"id": "chatcmpl-1", "model": "m", "choices": [], "usage": USAGE}),
    event("[DONE]"),
    LAST_CHUNK,
]


def answer(*texts: str) -> Script:
    """Return the script of a whole answer."""
    return [STREAM_HEAD, *map(chunk, texts), *ENDING]


def refusal(status: int, error: Mapping[str, Any] | None, **headers: str) -> Script:
    """Return the script of a refusal. Any: JSON."""
    body = b"<h1>oh</h1>" if error is None else json.dumps({"error": error}).encode()
    lines = [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} No", f"Content-Length: {len(body)}", *lines])
    return [head.encode() + b"\r\n\r\n" + body]
