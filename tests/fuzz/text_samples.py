"""Samples of text that is sent to us, of every kind once and as it comes from real clients."""

import json
from typing import Any

_SCHEMA: dict[str, Any] = {  # Any: JSON
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "next": {"$ref": "#/$defs/node"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"node": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
}
_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Grüße"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]},
]
_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": _SCHEMA, "strict": True},
}
_SAMPLING = {
    "model": "fake",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 10,
    "seed": 7,
    "n": 2,
    "stop": ["\n", "x"],
    "stop_token_ids": [1],
    "logit_bias": {"17": -100.0},
    "max_tokens": 8,
    "deadline_ms": 1000,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}},
    "user": "u",
    "suffix": None,
}


def _dumped(*values: Any) -> list[bytes]:  # Any: JSON
    return [json.dumps(value).encode() for value in values]


CHAT_BODIES = _dumped(
    {"messages": _MESSAGES, **_SAMPLING},
    {"messages": _MESSAGES[:1], "logprobs": True, "top_logprobs": 3, "max_completion_tokens": 4},
    {"messages": _MESSAGES[:2], "tools": [_TOOL], "tool_choice": "auto"},
    {
        "messages": _MESSAGES[:2],
        "tools": [_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
)
COMPLETION_BODIES = _dumped(
    {"prompt": "a", **_SAMPLING},
    {"prompt": ["a", "b"], "echo": True, "logprobs": 2},
    {"prompt": [1, 2, 3], "structured_outputs": {"regex": "a+"}, "n": 3},
    {"prompt": [[1], [2, 3]], "guided_choice": ["x", "y"], "request_key": "k", "priority": 3},
)
_REQUEST = {"custom_id": "1", "method": "POST"}
BATCH_LINES = _dumped(
    {**_REQUEST, "url": "/v1/chat/completions", "body": {"messages": _MESSAGES[:2], "seed": 1}},
    {**_REQUEST, "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 3, "n": 2}},
)
BATCH_ROWS = _dumped(
    {
        "id": "b",
        "custom_id": "1",
        "response": {"status_code": 200, "request_id": "r", "body": {"choices": []}},
        "error": None,
    },
    {"id": "b", "custom_id": None, "response": None, "error": {"code": "x", "line": 3}},
)
CONSTRAINED = _dumped(
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}},
    {"response_format": {"type": "json_object"}},
    {"guided_json": _SCHEMA},
    {"guided_json": json.dumps(_SCHEMA)},
    {"guided_regex": "(a|b)*[0-9]{2,5}"},
    {"guided_choice": ["yes", "no", "Ünïcode ☃"]},
)
REGEXES = [
    b"(a|b)*abb",
    b"[a-zA-Z0-9._%+-]+@[a-z]+\\.(com|org)",
    b"\\d{3}-\\d{4}(x\\w{1,20})?",
    "[äöü]+|☃{2}".encode(),
    b"((a{0,50}){0,50}){0,50}",
]
SCHEMAS = _dumped(
    _SCHEMA,
    {"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "minItems": 1},
    {"oneOf": [{"type": "string", "format": "date-time"}, {"const": 3}]},
    {"allOf": [{"type": "object", "properties": {"a": True}}, {"required": ["a"]}]},
)
EVENTS = [
    b'data: {"id": "x", "choices": []}\n\ndata: [DONE]\n\n',
    b": keep-alive\n\ndata: a\r\ndata: b\r\n\r\n",
    b"event: error\nid: 7\nretry: 10\ndata:x\n\n",
]
ENVIRONMENTS = _dumped(
    {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=b%20c,d=e",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "3.5",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_BSP_MAX_QUEUE_SIZE": "2048",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_RESOURCE_ATTRIBUTES": "a=b",
    },
    {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "host:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    {"SIZE": "512MiB", "SHARE": "45%", "KEYS": "key tenant,other", "WEIGHTS": "a=2,b=0.5"},
)


def otlp_samples() -> list[bytes]:
    """Return exports of spans as the OpenTelemetry SDK writes them."""
    # Loaded late: most who take samples from here need no protobuf.
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415 - protobuf, for one sample
        ExportTraceServiceRequest,
    )

    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    service = of_resource.resource.attributes.add(key="service.name")
    service.value.string_value = "decode"
    span = of_resource.scope_spans.add().spans.add(
        trace_id=b"\1" * 16, span_id=b"\2" * 8, name="step", kind=1, start_time_unix_nano=5
    )
    nested = span.attributes.add(key="list").value.array_value.values.add()
    nested.kvlist_value.values.add(key="k").value.int_value = 3
    span.events.add(name="e")
    span.links.add(trace_id=b"\3" * 16, span_id=b"\4" * 8)
    empty = ExportTraceServiceRequest()
    return [request.SerializeToString(), empty.SerializeToString()]
