"""
Traces as OTLP in JSON, the form that Jaeger's page and other viewers open, and back.

The protocol's JSON differs from protobuf's own: ids are hexadecimal, 64-bit integers strings, and
kinds and codes numbers (OpenTelemetry protocol, "JSON Protobuf Encoding").
"""

import base64
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from slipstream.shared.errors import SlipstreamError
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.received import (
    ReceivedEvent,
    ReceivedLink,
    ReceivedSpan,
    ReceivedValue,
)

_SCOPE: Final = "slipstream"
_CODE_UNSET, _CODE_ERROR = 0, 2

Json = dict[str, Any]  # Any: JSON


class NoTraceError(SlipstreamError):
    """What should hold traces as OTLP in JSON doesn't."""

    code = "no_trace"


def to_otlp(spans: Iterable[ReceivedSpan]) -> Json:
    """Return spans as a TracesData message, those of a process together."""
    by_resource: dict[str, tuple[dict[str, ReceivedValue], list[ReceivedSpan]]] = {}
    for span in spans:
        _, found = by_resource.setdefault(repr(sorted(span.resource.items())), (span.resource, []))
        found.append(span)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _pairs(resource)},
                "scopeSpans": [{"scope": {"name": _SCOPE}, "spans": [_span(each) for each in of]}],
            }
            for resource, of in by_resource.values()
        ]
    }


def from_otlp(data: object) -> list[ReceivedSpan]:
    """Return the spans of a TracesData message, by start time. Raises NoTraceError."""
    try:
        assert isinstance(data, dict), "no object"
        spans = [
            _received(span, resource)
            for of_resource in data["resourceSpans"]
            for resource in [_attributes(of_resource.get("resource", {}))]
            for of_scope in of_resource.get("scopeSpans", [])
            for span in of_scope.get("spans", [])
        ]
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise NoTraceError(f"this is no OTLP in JSON ({type(error).__name__}: {error})") from error
    return sorted(spans, key=lambda span: span.start_ns)


def _span(span: ReceivedSpan) -> Json:
    found: Json = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _pairs(span.attributes),
        "status": {"code": _CODE_ERROR if span.is_error else _CODE_UNSET},
    }
    if span.parent_span_id is not None:
        found["parentSpanId"] = span.parent_span_id
    if span.error:
        found["status"]["message"] = span.error
    if span.events:
        found["events"] = [
            {
                "name": event.name,
                "timeUnixNano": str(event.time_ns),
                "attributes": _pairs(event.attributes),
            }
            for event in span.events
        ]
    if span.links:
        found["links"] = [{"traceId": link.trace_id, "spanId": link.span_id} for link in span.links]
    return found


def _pairs(attributes: Mapping[str, ReceivedValue]) -> list[Json]:
    return [{"key": key, "value": _any_value(value)} for key, value in attributes.items()]


def _any_value(value: ReceivedValue) -> Json:  # noqa: PLR0911 - one for each kind
    match value:
        case None:
            return {}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            # JSON has no such numbers; protobuf's JSON writes their names.
            return {"doubleValue": value if math.isfinite(value) else _named(value)}
        case bytes():
            return {"bytesValue": base64.b64encode(value).decode()}
        case list():
            return {"arrayValue": {"values": [_any_value(each) for each in value]}}
        case dict():
            return {"kvlistValue": {"values": _pairs(value)}}
        case _:
            return {"stringValue": str(value)}


def _named(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _received(span: Json, resource: dict[str, ReceivedValue]) -> ReceivedSpan:
    status = span.get("status", {})
    return ReceivedSpan(
        name=str(span.get("name", "")),
        service=str(resource.get(names.SERVICE_NAME, "")),
        trace_id=str(span["traceId"]),
        span_id=str(span["spanId"]),
        parent_span_id=str(span["parentSpanId"]) if span.get("parentSpanId") else None,
        kind=int(span.get("kind", 0)),
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        attributes=_attributes(span),
        resource=resource,
        events=tuple(
            ReceivedEvent(
                str(event.get("name", "")), int(event.get("timeUnixNano", 0)), _attributes(event)
            )
            for event in span.get("events", [])
        ),
        links=tuple(
            ReceivedLink(str(link["traceId"]), str(link["spanId"]))
            for link in span.get("links", [])
        ),
        is_error=status.get("code", _CODE_UNSET) == _CODE_ERROR,
        error=str(status.get("message", "")),
    )


def _attributes(owner: Json) -> dict[str, ReceivedValue]:
    return {pair["key"]: _plain(pair.get("value", {})) for pair in owner.get("attributes", [])}


def _plain(value: Json) -> ReceivedValue:  # noqa: PLR0911 - one for each kind
    match value:
        case {"intValue": number}:
            return int(number)
        case {"doubleValue": number}:
            return float(number)
        case {"bytesValue": text}:
            return base64.b64decode(text)
        case {"arrayValue": array}:
            return [_plain(each) for each in array.get("values", [])]
        case {"kvlistValue": pairs}:
            return {each["key"]: _plain(each.get("value", {})) for each in pairs.get("values", [])}
        case {"boolValue": plain} | {"stringValue": plain}:
            return plain
        case _:
            return None
