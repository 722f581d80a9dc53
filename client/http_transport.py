"""Requests over HTTP, to the OpenAI-compatible gateway."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import httpx2

from slipstream.client.errors import (
    ClientClosedError,
    ConnectionLostError,
    HttpStatusError,
    ServerUnreachableError,
)
from slipstream.client.event_stream import EventStream
from slipstream.client.openai_shapes import (
    Chunk,
    Journey,
    chunk_of,
    failed_of,
    failed_of_body,
    path_and_body,
    request_id_of,
    retry_after_of,
    usage_of,
)
from slipstream.shared.client.answers import Answer, RequestFailedError
from slipstream.shared.errors import ConfigurationError, DeadlineExceededError, ProtocolError
from slipstream.shared.messages.common import FinishReason, Timings, Usage
from slipstream.shared.messages.generate import GenerateRequest

CONNECT_S = 5.0
# In a stream that has begun, if only by a comment. Before that it may wait in the server's queue,
# as long as the request may take.
SILENCE_S = 30.0
_MAX_ERROR_BYTES = 64 * 1024
_DONE = b"[DONE]"
_DRAIN_S = 0.2


class HttpAttempt:
    """One streamed request. Closing its connection cancels it: the server sees that."""

    def __init__(
        self, http: httpx2.AsyncClient, request: GenerateRequest, timeout_s: float, silence_s: float
    ) -> None:
        self.answer: Answer | None = None
        self._http = http
        self._request = request
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._draft = _Draft(request)
        self._has_begun = False

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Send the request and yield its text; see `Attempt`."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        with _translated(str(self._http.base_url)):
            response = await self._send(deadline_s)
            try:
                async with contextlib.aclosing(self._chunks(response, deadline_s)) as chunks:
                    async for chunk in chunks:
                        if text := self._draft.take(chunk):
                            yield text
            finally:
                await response.aclose()
        self.answer = self._draft.answer()

    async def cancel(self) -> None:
        """Do nothing: closing `pieces` says it all."""

    async def _send(self, deadline_s: float) -> httpx2.Response:
        path, body = path_and_body(self._request)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        sent = self._http.build_request("POST", path, content=body, headers=headers)
        try:
            async with asyncio.timeout_at(deadline_s):
                response = await self._http.send(sent, stream=True)
        except TimeoutError as error:
            raise DeadlineExceededError("answer", self._timeout_s) from error
        try:
            await _check(response)
        except BaseException:
            await response.aclose()
            raise
        return response

    async def _chunks(
        self, response: httpx2.Response, deadline_s: float
    ) -> AsyncGenerator[Chunk, None]:
        events = EventStream()
        received = response.aiter_bytes()
        while (part := await self._next(received, deadline_s)) is not None:
            for event in events.feed(part):
                if event == _DONE:
                    await _drain(received)
                    return
                chunk = chunk_of(event)
                if chunk.error is not None:
                    raise RequestFailedError(failed_of(chunk.error, "server_error"))
                yield chunk
        raise ConnectionLostError("the connection ended before the answer did")

    async def _next(self, received: AsyncIterator[bytes], deadline_s: float) -> bytes | None:
        loop = asyncio.get_running_loop()
        wait_s = deadline_s - loop.time()
        if self._has_begun:
            wait_s = min(wait_s, self._silence_s)
        try:
            async with asyncio.timeout(wait_s):
                part = await anext(received, None)
        except TimeoutError as error:
            if loop.time() >= deadline_s:
                raise DeadlineExceededError("ending of the stream", self._timeout_s) from error
            raise ConnectionLostError(f"nothing came for {self._silence_s:g} s") from error
        self._has_begun = True
        return part


class _Draft:
    """An answer as it is put together."""

    def __init__(self, request: GenerateRequest) -> None:
        self._seed = request.seed
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._usage: Usage | None = None
        self._journey: Journey | None = None
        self._last: Chunk | None = None
        self._began_s = time.monotonic()
        self._first_s = self._last_s = self._began_s

    def take(self, chunk: Chunk) -> str:
        """Take a chunk; return the text that it adds."""
        self._last = chunk
        self._token_ids += chunk.token_ids
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self._journey = chunk.slipstream or self._journey
        if chunk.usage is not None:
            self._usage = usage_of(chunk.usage, self._journey)
        if chunk.used_seed is not None:
            self._seed = chunk.used_seed
        if chunk.choices:
            self._last_s = time.monotonic()
        if text := chunk.text:
            if not self._pieces:
                self._first_s = self._last_s
            self._pieces.append(text)
        return text

    def answer(self) -> Answer:
        """Return the whole. Raises ProtocolError where the stream left something out."""
        if self._last is None or self._finish_reason is None or self._usage is None:
            raise ProtocolError("the stream ended without a finish_reason and a usage")
        journey = self._journey
        return Answer(
            text="".join(self._pieces),
            token_ids=self._token_ids,
            finish_reason=self._finish_reason,
            usage=self._usage,
            timings=journey.timings if journey else self._timings(self._usage.num_output_tokens),
            request_id=request_id_of(self._last.id),
            route=journey.known_route if journey else None,
            trace_id=journey.trace_id if journey else None,
            seed=self._seed,
            model=self._last.model,
        )

    def _timings(self, num_tokens: int) -> Timings:
        """As seen from here, the way included: other servers don't say how they went."""
        ttft_ms = 1000 * (self._first_s - self._began_s)
        decoding_ms = 1000 * (self._last_s - self._first_s)
        return Timings(
            ttft_ms=ttft_ms,
            tpot_ms=decoding_ms / (num_tokens - 1) if num_tokens > 1 else None,
            total_ms=ttft_ms + decoding_ms,
        )


class HttpTransport:
    """Requests to one gateway."""

    def __init__(
        self, url: str, api_key: str | None = None, *, silence_s: float = SILENCE_S
    ) -> None:
        """`url` is the server's, with or without the `/v1` that other clients want behind it."""
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._silence_s = silence_s
        try:
            self._http = httpx2.AsyncClient(
                base_url=url.rstrip("/").removesuffix("/v1"),
                headers=headers,
                timeout=httpx2.Timeout(None, connect=CONNECT_S),  # other waits are bounded here
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            )
        except httpx2.InvalidURL as error:
            raise ConfigurationError(f"{url!r} is no URL of a server: {error}") from error

    async def open(self) -> None:
        """Connect to nothing: each request does, or takes a connection that is free."""
        if self._http.is_closed:
            raise ClientClosedError

    def attempt(self, request: GenerateRequest, timeout_s: float) -> HttpAttempt:
        """Return a try."""
        return HttpAttempt(self._http, request, timeout_s, self._silence_s)

    async def submit(self, request: GenerateRequest) -> str:  # noqa: ARG002 - the protocol's
        """Refuse: the gateway has no entrance for it."""
        raise ConfigurationError("submissions go over NATS; make a client with a nats:// URL")

    async def fetch(self, key: str, wait_s: float) -> Answer | None:  # noqa: ARG002 - part of `Transport`
        """Refuse, as `submit`."""
        raise ConfigurationError("results are fetched over NATS; make a client with a nats:// URL")

    async def close(self) -> None:
        """Close the connections that are kept."""
        await self._http.aclose()


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn the errors of the HTTP library into ours."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise ServerUnreachableError(url, str(error) or type(error).__name__) from error
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__
        raise ConnectionLostError(f"the connection to {url} broke: {reason}") from error


async def _check(response: httpx2.Response) -> None:
    """Raise HttpStatusError for a refusal, ProtocolError for what is no stream."""
    if response.status_code != httpx2.codes.OK:
        body = await _beginning(response)
        failed = failed_of_body(response.status_code, body, retry_after_of(response.headers))
        raise HttpStatusError(response.status_code, failed)
    kind = response.headers.get("Content-Type", "nothing")
    if not kind.startswith("text/event-stream"):
        raise ProtocolError(f"{response.url} answered {kind} instead of a stream of events")


async def _drain(received: AsyncIterator[bytes]) -> None:
    """Read what should be the end: only then can the connection take another request."""
    with contextlib.suppress(TimeoutError, httpx2.TransportError):
        async with asyncio.timeout(_DRAIN_S):
            await anext(received, None)


async def _beginning(response: httpx2.Response) -> bytes:
    body = b""
    with contextlib.suppress(TimeoutError, httpx2.TransportError):
        async with asyncio.timeout(CONNECT_S):
            async for part in response.aiter_bytes():
                body += part
                if len(body) >= _MAX_ERROR_BYTES:
                    break
    return body
