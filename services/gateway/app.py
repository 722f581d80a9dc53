"""The ASGI application: which path is answered by what, and JSON for all that isn't."""

from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipstream.services.gateway.bodies import ChatBody, CompletionBody
from slipstream.services.gateway.console import console_routes
from slipstream.services.gateway.endpoints import Endpoint, Handler, Handlers, Reply
from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.exchange import JSON, Exchange
from slipstream.services.gateway.gateway import Gateway
from slipstream.services.gateway.generation_endpoint import GenerationEndpoint
from slipstream.services.gateway.openapi import openapi_document
from slipstream.services.gateway.plans import Asking, Plan, plan_chat, plan_completion
from slipstream.shared.telemetry.prometheus_meter import CONTENT_TYPE, PrometheusMeter

_NOT_FOUND = 404
_NOT_ALLOWED = 405


def make_app(gateway: Gateway, meter: PrometheusMeter) -> Starlette:
    """Return the application."""
    handlers = Handlers(gateway)

    async def metrics(_exchange: Exchange) -> Reply:
        return Reply(meter.render(), content_type=CONTENT_TYPE)

    async def description(_exchange: Exchange) -> Reply:
        return Reply(openapi_document())

    get: list[tuple[str, Handler]] = [
        ("/v1/models", handlers.models),
        ("/v1/models/{model:path}", handlers.model),
        ("/health", handlers.health),
        ("/ready", handlers.ready),
        ("/version", handlers.version),
        ("/metrics", metrics),
        ("/openapi.json", description),
    ]
    post: list[tuple[str, Handler]] = [
        ("/tokenize", handlers.tokenize),
        ("/detokenize", handlers.detokenize),
    ]
    app = Starlette(
        routes=[
            _generation(gateway, "/v1/chat/completions", partial(_read_chat, gateway)),
            _generation(gateway, "/v1/completions", partial(_read_completion, gateway)),
            *(_route(gateway, path, "GET", handler) for path, handler in get),
            *(_route(gateway, path, "POST", handler) for path, handler in post),
            *console_routes(gateway),
        ],
        exception_handlers={HTTPException: _refuse},
    )
    app.router.redirect_slashes = False
    return app


def _read_chat(gateway: Gateway, body: bytes, asking: Asking) -> Plan:
    return plan_chat(gateway.bodies.read(body, ChatBody), asking, gateway.served.tokenizer)


def _read_completion(gateway: Gateway, body: bytes, asking: Asking) -> Plan:
    return plan_completion(gateway.bodies.read(body, CompletionBody), asking)


def _generation(gateway: Gateway, path: str, read: Any) -> Route:  # Any: a partial function
    return Route(path, GenerationEndpoint(gateway, path, read), methods=["POST"])


def _route(gateway: Gateway, path: str, method: str, handler: Handler) -> Route:
    name = path.replace(":path", "")
    return Route(path, Endpoint(gateway, name, handler), methods=[method])


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer in JSON where no endpoint is."""
    assert isinstance(error, HTTPException), "registered for it"
    path = request.url.path
    if error.status_code == _NOT_ALLOWED:
        told = ApiError("method_not_allowed", f"{request.method} is not served on {path}")
    elif error.status_code == _NOT_FOUND:
        told = ApiError("unknown_route", f"{path} is not served here; see /openapi.json")
    else:
        told = ApiError("invalid_request", str(error.detail))
    return Response(told.body, told.status, headers=error.headers, media_type=JSON)
