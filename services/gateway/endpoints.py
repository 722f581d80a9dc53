"""The small endpoints: models, tokens, health, and what is not served."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from slipstream.services.gateway.bodies import DetokenizeBody, TokenizeBody
from slipstream.services.gateway.errors import ApiError, api_error_of, invalid
from slipstream.services.gateway.exchange import (
    JSON,
    CutOffError,
    Exchange,
    Receive,
    Scope,
    Send,
)
from slipstream.services.gateway.gateway import Gateway
from slipstream.services.gateway.shapes import Health, ModelList, Text, Tokens, Version
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.version import VERSION

log = structlog.get_logger()

_json = msgspec.json.Encoder().encode
_MAX_INLINE_BYTES = 2048  # a text so short is tokenized in less time than a thread needs


class Reply(msgspec.Struct, frozen=True):
    """A whole answer."""

    body: Any  # Any: a struct, or bytes as they are
    status: int = 200
    content_type: str = JSON


Handler = Callable[[Exchange], Awaitable[Reply]]


class Endpoint:
    """An ASGI application that answers with what a function returns."""

    def __init__(self, gateway: Gateway, path: str, handler: Handler) -> None:
        self._gateway = gateway
        self._path = path
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        exchange = Exchange(scope, receive, send, self._gateway.config.stall_timeout_s)
        with suppress(CutOffError):
            try:
                reply = await self._handler(exchange)
                body = reply.body if isinstance(reply.body, bytes) else _json(reply.body)
                await exchange.answer(reply.status, body, reply.content_type)
            except SlipstreamError as error:
                await exchange.fail(api_error_of(error))
            except Exception:
                log.exception("request_failed", client_request_id=exchange.request_id)
                if exchange.status is not None:
                    raise
                await exchange.fail(ApiError("internal_error", "the gateway failed"))
        self._gateway.metrics.answered(self._path, exchange.status or 499)


class Handlers:
    """What the endpoints answer."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._card = gateway.served.card

    async def models(self, exchange: Exchange) -> Reply:
        """GET /v1/models."""
        self._gateway.keys.tenant_of(exchange.headers.get("authorization"))
        return Reply(ModelList(data=[self._card]))

    async def model(self, exchange: Exchange) -> Reply:
        """GET /v1/models/{id}."""
        self._gateway.keys.tenant_of(exchange.headers.get("authorization"))
        self._check_model(exchange.path_parameters["model"])
        return Reply(self._card)

    async def tokenize(self, exchange: Exchange) -> Reply:
        """POST /tokenize."""
        raw = await self._body(exchange)
        body = self._gateway.bodies.read(raw, TokenizeBody)
        self._check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise invalid("prompt", "send one of prompt and messages")
        is_short = len(raw) <= _MAX_INLINE_BYTES
        tokens = self._tokens(body) if is_short else await asyncio.to_thread(self._tokens, body)
        return Reply(
            Tokens(count=len(tokens), max_model_len=self._card.max_model_len, tokens=tokens)
        )

    async def detokenize(self, exchange: Exchange) -> Reply:
        """POST /detokenize."""
        raw = await self._body(exchange)
        is_short = len(raw) <= _MAX_INLINE_BYTES
        return self._text(raw) if is_short else await asyncio.to_thread(self._text, raw)

    async def health(self, _exchange: Exchange) -> Reply:
        """GET /health: the gateway lives."""
        return Reply(Health())

    async def ready(self, _exchange: Exchange) -> Reply:
        """GET /ready: a request would be served now."""
        found = await self._gateway.fleet.readiness()
        is_ready = found.is_ready and not self._gateway.is_draining
        return Reply(msgspec.structs.replace(found, is_ready=is_ready), 200 if is_ready else 503)

    async def version(self, _exchange: Exchange) -> Reply:
        """GET /version."""
        return Reply(Version(VERSION))

    def _text(self, raw: bytes) -> Reply:
        body = self._gateway.bodies.read(raw, DetokenizeBody)
        self._check_model(body.model)
        tokenizer = self._gateway.served.tokenizer
        for position, token_id in enumerate(body.tokens):
            if not 0 <= token_id < tokenizer.vocab_size:
                raise invalid(
                    f"tokens[{position}]",
                    f"{token_id} is no token; ids lie in [0, {tokenizer.vocab_size - 1}]",
                )
        return Reply(Text(tokenizer.decode(body.tokens, skip_special_tokens=False)))

    async def _body(self, exchange: Exchange) -> bytes:
        self._gateway.admit(exchange)
        config = self._gateway.config
        return await exchange.read_body(config.max_body_bytes, config.body_timeout_s)

    def _check_model(self, asked: str | None) -> None:
        if asked not in (None, self._card.id):
            raise ApiError(
                "model_not_found",
                f"model: {asked!r} is not served here; {self._card.id!r} is",
                param="model",
            )

    def _tokens(self, body: TokenizeBody) -> list[int]:
        tokenizer = self._gateway.served.tokenizer
        if body.prompt is not None:
            return tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)
        messages = [msgspec.to_builtins(message) for message in body.messages or []]
        return tokenizer.encode_chat(messages)
