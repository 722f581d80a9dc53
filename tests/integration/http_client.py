"""HTTP as clients speak it: whole answers, events as they come, and a socket that misbehaves."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx

Json = dict[str, Any]  # Any: JSON
WAIT_S = 15.0


class HttpClient:
    """A client of one gateway."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.AsyncClient(base_url=url, timeout=WAIT_S)

    async def post(self, path: str, body: Json | bytes, **headers: str) -> httpx.Response:
        """Send a body; return the answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(
            path, content=content, headers={"content-type": "application/json"} | names
        )

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """Return what stands under a path."""
        return await self.http.get(path, headers=headers)

    async def complete(self, prompt: str = "Hello", **fields: Any) -> Json:
        """Return the answer to a completion. Any: fields of a request."""
        answer = await self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        assert 200 == answer.status_code, answer.text
        found: Json = answer.json()
        return found

    async def chat(self, text: str = "Hello", **fields: Any) -> Json:
        """Return the answer to a chat. Any: as above."""
        answer = await self.post("/v1/chat/completions", chat_body(text, **fields))
        assert 200 == answer.status_code, answer.text
        found: Json = answer.json()
        return found

    async def events(self, path: str, body: Json) -> list[str]:
        """Return the data of all events of a stream."""
        answer = await self.post(path, {**body, "stream": True})
        assert 200 == answer.status_code, answer.text
        assert "text/event-stream; charset=utf-8" == answer.headers["content-type"]
        return data_of(answer.text)

    async def chunks(self, path: str, body: Json) -> list[Json]:
        """Return the chunks of a stream, which must end well."""
        *chunks, last = await self.events(path, body)
        assert "[DONE]" == last
        return [json.loads(chunk) for chunk in chunks]

    async def close(self) -> None:
        """Hang up."""
        await self.http.aclose()

    @contextlib.asynccontextmanager
    async def raw(
        self, path: str, body: Json, receive_bytes: int = 65_536
    ) -> AsyncIterator["RawRequest"]:
        """A request on a socket of our own, which ends with the block at the latest."""
        host, port = urlsplit(self.url).hostname, urlsplit(self.url).port
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        own.setblocking(False)  # noqa: FBT003 - the socket's own
        await asyncio.get_running_loop().sock_connect(own, (host, port))
        reader, writer = await asyncio.open_connection(sock=own, limit=2**24)
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        try:
            yield RawRequest(reader, writer)
        finally:
            writer.transport.abort()


class RawRequest:
    """What was sent, and how its answer is or isn't read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def until(self, mark: bytes) -> bytes:
        """Read up to a mark."""
        async with asyncio.timeout(WAIT_S):
            return await self.reader.readuntil(mark)

    async def first_chunk(self) -> None:
        """Read up to the end of the first event."""
        await self.until(b"}\n\n")

    def pause(self) -> None:
        """Read nothing more for now."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined] # both ways in one

    def resume(self) -> None:
        """Read on."""
        self.writer.transport.resume_reading()  # type: ignore[attr-defined] # as above

    def hang_up(self) -> None:
        """Close at once, as a process that is killed does."""
        self.writer.transport.abort()

    async def rest(self) -> bytes:
        """Read until the other side closes, or resets, the connection."""
        pieces: list[bytes] = []
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(WAIT_S):
                while piece := await self.reader.read(65_536):
                    pieces.append(piece)
        return b"".join(pieces)


def chat_body(text: str = "Hello", **fields: Any) -> Json:
    """Return the body of a chat of one message. Any: fields of a request."""
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def data_of(text: str) -> list[str]:
    """Return the data of events, comments left out."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks), text
    return [block.removeprefix("data: ") for block in blocks]
