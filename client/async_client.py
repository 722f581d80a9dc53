"""The client for programs with an event loop."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

import msgspec

from slipstream.client.errors import ClientClosedError
from slipstream.client.options import ChatTurn, Options, Prompt, Question, request_of, with_seed
from slipstream.client.reading import Reading
from slipstream.client.retries import Retries
from slipstream.client.streams import AsyncStream
from slipstream.client.transport import Transport
from slipstream.shared.bus.nats_access import NO_ACCESS, NatsAccess
from slipstream.shared.client.answers import Answer
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.nats_config import DEFAULT_NATS_URL

DEFAULT_TIMEOUT_S = 300.0


class AsyncClient:
    """
    Asks a running stack, over NATS (`nats://`, `tls://`) or HTTP (`http://`, `https://`).

    It connects when it is first used, belongs to the event loop that it is used in, and serves any
    number of tasks. For example:

        async with AsyncClient("nats://127.0.0.1:4222") as client:
            async with client.stream("Once upon a time", max_tokens=40) as stream:
                async for piece in stream:
                    print(piece, end="", flush=True)
            print(stream.answer.usage)
    """

    def __init__(
        self,
        url: str = DEFAULT_NATS_URL,
        *,
        api_key: str | None = None,
        nats_access: NatsAccess = NO_ACCESS,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        transport: Transport | None = None,
    ) -> None:
        """`timeout_s` is for whole answers, retries included; `transport` replaces the URL's."""
        self._transport = transport or transport_of(url, api_key, nats_access)
        self._timeout_s = timeout_s
        self._retries = retries or Retries()
        self._streams: set[AsyncStream] = set()
        self._is_closed = False

    async def generate(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Answer:
        """Return what follows a raw text, or token ids. A cancelled wait cancels the request."""
        async with self.stream(prompt, timeout_s=timeout_s, **options) as stream:
            return await stream.read()

    async def chat(
        self,
        messages: Sequence[ChatTurn],
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """
        Return the answer to chat messages, which go through the model's template.

        For example `await client.chat([{"role": "user", "content": "Name three rivers."}])`.
        """
        async with self.stream(messages, timeout_s=timeout_s, **options) as stream:
            return await stream.read()

    def stream(
        self, question: Question, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncStream:
        """Return a stream to enter and read: of a raw text, token ids or chat messages."""
        if self._is_closed:
            raise ClientClosedError
        # A seed of ours, if there is none: a stream that breaks is repeated with the same tokens.
        request = with_seed(request_of(question, options))
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        reading = Reading(self._transport, request, self._retries, wait_s)
        return AsyncStream(self._transport, reading, self._streams)

    async def submit(
        self, question: Question, *, request_key: str | None = None, **options: Unpack[Options]
    ) -> str:
        """
        Store a request with the server, and return the key of its result.

        Under a `request_key` of your own it has one result, however often it is submitted.
        """
        request = msgspec.structs.replace(request_of(question, options), request_key=request_key)
        await self._transport.open()
        return await self._transport.submit(request)

    async def result(self, key: str, *, wait_s: float = 0.0) -> Answer | None:
        """
        Return the answer under a key, or None when there is none within so many seconds.

        Raises RequestFailedError when the request failed.
        """
        await self._transport.open()
        return await self._transport.fetch(key, wait_s)

    async def close(self) -> None:
        """Cancel what is still being read, and disconnect. May be called again."""
        self._is_closed = True
        await asyncio.gather(*(stream.close() for stream in list(self._streams)))
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def transport_of(url: str, api_key: str | None, nats_access: NatsAccess = NO_ACCESS) -> Transport:
    """Return the way to a URL. Raises ConfigurationError for one that can't be."""
    scheme = url.partition("://")[0]
    if scheme in {"http", "https"}:
        if nats_access != NO_ACCESS:
            raise ConfigurationError("nats_access is for nats:// URLs; HTTP takes api_key")
        # Imported here: a client over NATS needs no HTTP, and the other way round.
        from slipstream.client.http_transport import HttpTransport  # noqa: PLC0415 - whoever uses the other transport need not load it

        return HttpTransport(url, api_key)
    if scheme not in {"nats", "tls"}:
        raise ConfigurationError(
            f"{url!r} is no URL of a server; give nats://HOST:PORT or http://HOST:PORT"
        )
    if api_key is not None:
        raise ConfigurationError(
            "api_key is for http:// URLs; NATS takes nats_access=NatsAccess(nkey=FILE)"
        )
    from slipstream.client.nats_transport import nats_transport  # noqa: PLC0415 - whoever uses the other transport need not load it

    return nats_transport(url, nats_access)
