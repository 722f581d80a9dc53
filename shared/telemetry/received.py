"""Decode what an OTLP/HTTP sender posts."""

import zlib
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from slipstream.shared.telemetry import names

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

MAX_BODY_BYTES: Final = 16 * 1024 * 1024  # before and after decompression

# int, str, bool, float, bytes, None, and lists and dicts of them: what OTLP can hold.
ReceivedValue = Any


class ReceivedEvent(msgspec.Struct, frozen=True):
    """An event within a span."""

    name: str
    time_ns: int
    attributes: dict[str, ReceivedValue] = {}  # a struct copies it


class ReceivedLink(msgspec.Struct, frozen=True):
    """A span of another trace that a span refers to."""

    trace_id: str
    span_id: str


class ReceivedSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span as it arrived."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, ReceivedValue]
    resource: dict[str, ReceivedValue]
    events: tuple[ReceivedEvent, ...] = ()
    links: tuple[ReceivedLink, ...] = ()
    is_error: bool = False
    error: str = ""

    @property
    def event_names(self) -> tuple[str, ...]:
        """Names of its events, in their order."""
        return tuple(event.name for event in self.events)

    @property
    def linked_trace_ids(self) -> tuple[str, ...]:
        """Traces that it refers to."""
        return tuple(link.trace_id for link in self.links)

    @property
    def is_root(self) -> bool:
        """True for a request's root, also where a client outside is its parent."""
        return self.parent_span_id is None or self.name == names.SPAN_PROCESS_GENERATE


class RefusedError(Exception):
    """A body that is not accepted, with the HTTP status that says why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        self.status = status
        super().__init__(reason)


def decode_spans(body: bytes) -> list[ReceivedSpan]:
    """Return the spans of an ExportTraceServiceRequest. Raises RefusedError."""
    # A process without a receiver has no need of protobuf.
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415 - only a receiver needs protobuf; it has no types
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415 - only a receiver needs protobuf
        ExportTraceServiceRequest,
    )

    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "no ExportTraceServiceRequest") from error
    return [
        _received(span, resource)
        for of_resource in request.resource_spans
        for resource in [_attributes(of_resource.resource.attributes)]
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _received(span: "Span", resource: dict[str, ReceivedValue]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        service=str(resource.get(names.SERVICE_NAME, "")),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex() or None,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        resource=resource,
        events=tuple(
            ReceivedEvent(event.name, event.time_unix_nano, _attributes(event.attributes))
            for event in span.events
        ),
        links=tuple(ReceivedLink(link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        error=span.status.message,
    )


def _attributes(pairs: "Iterable[KeyValue]") -> dict[str, ReceivedValue]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: "AnyValue") -> ReceivedValue:
    match value.WhichOneof("value"):
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case None:
            return None
        case field:
            return getattr(value, field)


def decompress(body: bytes, encoding: str) -> bytes:
    """Undo the content encoding without ever holding more than the limit. Raises RefusedError."""
    match encoding:
        case "identity":
            return body
        case "gzip":
            window_bits = 16 + zlib.MAX_WBITS
        case "deflate":
            window_bits = zlib.MAX_WBITS
        case _:
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "only gzip and deflate")
    decompressor = zlib.decompressobj(window_bits)
    try:
        plain = decompressor.decompress(body, MAX_BODY_BYTES)
    except zlib.error as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"no valid {encoding}") from error
    if decompressor.unconsumed_tail:
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body too large")
    if not decompressor.eof:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"{encoding} ends too early")
    return plain
