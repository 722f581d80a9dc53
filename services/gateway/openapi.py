"""The description of the API for machines: made from the structs that are read and written."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from slipstream.services.gateway.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from slipstream.services.gateway.exchange import EVENTS, JSON
from slipstream.services.gateway.shapes import (
    ChatCompletion,
    ErrorBody,
    Health,
    ModelCard,
    ModelList,
    Readiness,
    Text,
    TextCompletion,
    Tokens,
    Version,
)
from slipstream.shared.version import VERSION

Json = dict[str, Any]  # Any: a JSON schema

_REFERENCES = "#/components/schemas/{name}"
_ERRORS = {
    400: "A field that can't be served as it stands, or no JSON.",
    401: "Keys are configured, and this is none of them.",
    404: "The model is not served here.",
    408: "The body did not come in time.",
    413: "The body, or what it asks for, is too large.",
    429: "Too much is waiting; Retry-After says when to try again.",
    499: "The request was cancelled by somebody else.",
    500: "The gateway or a worker failed.",
    503: "Nobody is there to serve it, or it is shutting down.",
    504: "The deadline passed.",
}
_READ = (400, 401, 404, 408, 413, 429, 500, 503)
_GENERATION = tuple(_ERRORS)
_WITH_RETRY = (429, 503)


@dataclass(frozen=True, kw_only=True)
class _Operation:
    path: str
    method: str
    summary: str
    answer: type | None = None  # None: plain text
    body: type | None = None
    errors: Sequence[int] = ()
    is_streamed: bool = False
    needs_key: bool = True
    not_ready: type | None = None


_OPERATIONS = (
    _Operation(
        path="/v1/chat/completions",
        method="post",
        summary="Answer a chat.",
        body=ChatBody,
        answer=ChatCompletion,
        errors=_GENERATION,
        is_streamed=True,
    ),
    _Operation(
        path="/v1/completions",
        method="post",
        summary="Continue a text.",
        body=CompletionBody,
        answer=TextCompletion,
        errors=_GENERATION,
        is_streamed=True,
    ),
    _Operation(
        path="/v1/models", method="get", summary="List models.", answer=ModelList, errors=(401,)
    ),
    _Operation(
        path="/v1/models/{model}",
        method="get",
        summary="Describe a model.",
        answer=ModelCard,
        errors=(401, 404),
    ),
    _Operation(
        path="/tokenize",
        method="post",
        summary="Turn a text or a chat into tokens.",
        body=TokenizeBody,
        answer=Tokens,
        errors=_READ,
    ),
    _Operation(
        path="/detokenize",
        method="post",
        summary="Turn tokens into a text.",
        body=DetokenizeBody,
        answer=Text,
        errors=_READ,
    ),
    _Operation(
        path="/health",
        method="get",
        summary="Tell that the gateway lives.",
        answer=Health,
        needs_key=False,
    ),
    _Operation(
        path="/ready",
        method="get",
        summary="Tell whether a request would be served now.",
        answer=Readiness,
        not_ready=Readiness,
        needs_key=False,
    ),
    _Operation(
        path="/version",
        method="get",
        summary="Name the version.",
        answer=Version,
        needs_key=False,
    ),
    _Operation(
        path="/metrics",
        method="get",
        summary="Numbers for Prometheus.",
        needs_key=False,
    ),
    _Operation(
        path="/openapi.json",
        method="get",
        summary="This description.",
        answer=dict,
        needs_key=False,
    ),
)


@cache
def openapi_document() -> bytes:
    """Return the description as JSON."""
    kinds = [
        kind
        for each in _OPERATIONS
        for kind in (each.body, each.answer)
        if kind is not None and kind is not dict
    ]
    schemas, components = msgspec.json.schema_components(
        [*dict.fromkeys(kinds), ErrorBody], ref_template=_REFERENCES
    )
    by_kind = dict(zip([*dict.fromkeys(kinds), ErrorBody], schemas, strict=True))
    paths: dict[str, Json] = {}
    for operation in _OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, by_kind)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Slipstream",
                "version": VERSION,
                "description": "OpenAI-compatible API. Fields that are known and not served are "
                "refused by name; unknown ones are ignored, with a warning in the log.",
            },
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(operation: _Operation, schemas: dict[type, Json]) -> Json:
    described: Json = {
        "summary": operation.summary,
        "operationId": f"{operation.method}{operation.path}".replace("/", "_"),
        "responses": {"200": _answer(operation, schemas)},
    }
    for status in operation.errors:
        described["responses"][str(status)] = _error(status, schemas[ErrorBody])
    if operation.not_ready is not None:
        content = {JSON: {"schema": schemas[operation.not_ready]}}
        described["responses"]["503"] = {"description": "It would not.", "content": content}
    if operation.body is not None:
        content = {JSON: {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    if "{model}" in operation.path:
        described["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if operation.needs_key:
        # The empty one: without configured keys none is needed.
        described["security"] = [{}, {"key": []}]
    return described


def _answer(operation: _Operation, schemas: dict[type, Json]) -> Json:
    if operation.answer is None:
        content: Json = {"text/plain": {"schema": {"type": "string"}}}
    elif operation.answer is dict:
        content = {JSON: {"schema": {"type": "object"}}}
    else:
        content = {JSON: {"schema": schemas[operation.answer]}}
    if operation.is_streamed:
        content[EVENTS.partition(";")[0]] = {"schema": {"type": "string"}}
    return {"description": "The answer.", "content": content}


def _error(status: int, schema: Json) -> Json:
    described: Json = {"description": _ERRORS[status], "content": {JSON: {"schema": schema}}}
    if status in _WITH_RETRY:
        described["headers"] = {
            "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string"}}
        }
    return described
