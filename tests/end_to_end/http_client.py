"""A client over HTTP that knows JSON and server-sent events, and nothing of client libraries."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from . import client, stack

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
_EVENT = "data: "
_DONE = "[DONE]"

Json = dict[str, Any]  # Any: JSON
Body = Mapping[str, Any] | bytes  # Any: fields of a request, right and wrong ones


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: Json

    @property
    def error(self) -> Json:
        """What an answer says is wrong; it must say so as OpenAI does."""
        error: Json = self.body["error"]
        assert {"error"} == set(self.body), self.body
        assert {"message", "type", "param", "code"} == set(error), error
        assert error["message"]
        return error

    @property
    def choice(self) -> Json:
        """The one choice."""
        assert 200 == self.status, self.body
        (choice,) = self.body["choices"]
        return dict(choice)

    @property
    def text(self) -> str:
        """What the one choice says."""
        return _text_of(self.choice, "message")


@dataclass
class Events:
    """A streamed answer: what of it was an event, and whether it was ended as it should be."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: list[Json] = field(default_factory=list)
    is_done: bool = False

    @property
    def pieces(self) -> list[Json]:
        """The choices of all chunks, in their order."""
        return [choice for chunk in self.chunks for choice in chunk.get("choices", [])]

    @property
    def text(self) -> str:
        """What the pieces say together, of one choice."""
        return "".join(_text_of(piece, "delta") for piece in self.pieces)

    @property
    def endings(self) -> list[Json]:
        """The pieces that say why it ended; one in a sound stream of one choice."""
        return [piece for piece in self.pieces if piece["finish_reason"] is not None]

    @property
    def error(self) -> Json | None:
        """What went wrong after it had begun."""
        found: list[Json] = [chunk["error"] for chunk in self.chunks if "error" in chunk]
        assert len(found) <= 1, found
        return found[0] if found else None


class HttpClient:
    """Connections to a gateway; each request may have one of its own."""

    def __init__(self, inner: httpx.AsyncClient) -> None:
        self._inner = inner

    async def get(self, path: str) -> Reply:
        """Ask for something."""
        return _reply(await self._inner.get(path))

    async def post(self, path: str, body: Body, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a body; bytes as they are. Return the whole answer, which must be JSON."""
        return _reply(await self._inner.post(path, content=_encode(body), headers=_json(headers)))

    async def chat(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Have a chat answered whole."""
        return await self.post(CHAT, body, headers)

    async def complete(self, body: Mapping[str, Any]) -> Reply:
        """Have a prompt continued, whole."""
        return await self.post(TEXT, body)

    async def stream(self, path: str, body: Mapping[str, Any]) -> Events:
        """Return a whole stream."""
        found = Events()
        async with self.streaming(path, body, found) as chunks:
            async for chunk in chunks:
                found.chunks.append(chunk)
        return found

    @contextlib.asynccontextmanager
    async def streaming(
        self, path: str, body: Mapping[str, Any], found: Events | None = None
    ) -> AsyncIterator[AsyncIterator[Json]]:
        """Yield what yields the chunks of a stream as they come; hang up when left."""
        found = Events() if found is None else found
        asked = _encode({**body, "stream": True})
        async with self._inner.stream("POST", path, content=asked, headers=_json(None)) as answer:
            found.status, found.headers = answer.status_code, answer.headers
            yield _chunks(answer, found)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[HttpClient]:
    """A client while a block runs; what it has open then is closed."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
    async with httpx.AsyncClient(base_url=url, timeout=client.ANSWER_S, limits=limits) as inner:
        yield HttpClient(inner)


def url_of(running: stack.Stack) -> str:
    """Return where the gateway of a stack is, as its status says."""
    status = running.status("gateway")
    assert status is not None, "the gateway is not up"
    assert status.http_url is not None, "the gateway does not serve"
    return status.http_url


async def _chunks(answer: httpx.Response, found: Events) -> AsyncIterator[Json]:
    if answer.status_code != httpx.codes.OK:
        yield json.loads(await answer.aread())
        return
    assert answer.headers["content-type"].startswith("text/event-stream")
    async for line in answer.aiter_lines():
        assert not found.is_done or not line, f"after the end: {line}"
        if not line or line.startswith(":"):
            continue
        assert line.startswith(_EVENT), line
        if line == _EVENT + _DONE:
            found.is_done = True
        else:
            yield json.loads(line.removeprefix(_EVENT))


def _reply(answer: httpx.Response) -> Reply:
    assert answer.headers["content-type"].startswith("application/json"), answer.text
    return Reply(answer.status_code, answer.headers, answer.json())


def _text_of(choice: Json, name: str) -> str:
    """Return what a choice of a chat or of a completion says."""
    return str(choice[name].get("content") or "") if name in choice else str(choice["text"])


def _encode(body: Body) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def _json(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {"content-type": "application/json", **(headers or {})}
