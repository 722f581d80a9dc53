"""The span of an HTTP request: the root of its trace, or the child of the client's own span."""

from collections.abc import Mapping

from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.exchange import Exchange
from slipstream.services.gateway.generation import Generation
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.context import TRACEPARENT
from slipstream.shared.telemetry.spans import Span, SpanKind
from slipstream.shared.telemetry.tracing import Tracer, extract, inject

_METHOD = "POST"
_OPERATIONS = {
    "chat": names.GEN_AI_OPERATION_CHAT,
    "text": names.GEN_AI_OPERATION_TEXT_COMPLETION,
}


def start_span(tracer: Tracer, path: str, exchange: Exchange) -> Span:
    """Start the span of a request."""
    return tracer.start(
        f"{_METHOD} {path}",
        parent=extract(exchange.headers),
        kind=SpanKind.SERVER,
        attributes={
            names.HTTP_REQUEST_METHOD: _METHOD,
            names.HTTP_ROUTE: path,
            names.CLIENT_REQUEST_ID: exchange.request_id,
        },
    )


def headers_for(tracer: Tracer, span: Span, exchange: Exchange) -> Mapping[str, str] | None:
    """
    Return the headers that make the scheduler's span a child of ours.

    A gateway that doesn't trace passes on what it was given, and decides nothing for the others.
    """
    if tracer.is_on or TRACEPARENT in exchange.headers:
        return inject(span.context)
    return None


def describe_generation(span: Span, generation: Generation) -> None:
    """Say what was asked for and what came, without any of its content."""
    plan, head = generation.plan, generation.head
    request = plan.requests[0]
    usage = generation.book.usage
    endings = [each.ending for each in generation.book.choices if each.ending is not None]
    span.set_many(
        {
            names.GEN_AI_OPERATION_NAME: _OPERATIONS[plan.kind],
            names.GEN_AI_REQUEST_MODEL: request.model,
            names.GEN_AI_REQUEST_MAX_TOKENS: request.max_tokens,
            names.GEN_AI_REQUEST_TEMPERATURE: request.temperature,
            names.GEN_AI_REQUEST_TOP_P: request.top_p,
            names.GEN_AI_REQUEST_TOP_K: request.top_k,
            names.GEN_AI_REQUEST_SEED: request.seed,
            names.GEN_AI_REQUEST_STREAM: plan.is_streamed,
            names.GEN_AI_RESPONSE_ID: head.id if head is not None else None,
            names.GEN_AI_RESPONSE_MODEL: head.model if head is not None else None,
            names.GEN_AI_RESPONSE_FINISH_REASONS: [each.finish_reason for each in endings] or None,
            names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: generation.first_chunk_s,
            names.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt_tokens,
            names.GEN_AI_USAGE_OUTPUT_TOKENS: usage.completion_tokens,
            names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: usage.prompt_tokens_details.cached_tokens,
        }
    )


def end_span(span: Span, status: int, error: ApiError | None) -> None:
    """End the span with the status; an error that the client is to blame for is none of ours."""
    span.set(names.HTTP_RESPONSE_STATUS_CODE, status)
    span.end(error.code if error is not None else None)
