"""Traces as OTLP in JSON, judged by the protocol's own definition."""

import base64
import json
import re
from typing import Any

import pytest
from google.protobuf import json_format  # type: ignore[import-untyped] # it has no types
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from slipstream.shared.telemetry.otlp_json import NoTraceError, from_otlp, to_otlp

from .traces import trace

_IDS = ("traceId", "spanId", "parentSpanId")


def _as_protobuf_has_it(value: Any) -> Any:  # Any: JSON
    """Return OTLP's JSON with ids as protobuf's own JSON writes bytes."""
    if isinstance(value, list):
        return [_as_protobuf_has_it(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(each)).decode()
        if key in _IDS
        else _as_protobuf_has_it(each)
        for key, each in value.items()
    }


def test_it_is_what_the_protocol_says() -> None:
    """The parser knows the schema, and refuses a field or a type that isn't in it."""
    written = json.loads(json.dumps(to_otlp(trace()), allow_nan=False))
    parsed = json_format.ParseDict(_as_protobuf_has_it(written), TracesData())

    spans = {
        span.name: span
        for of_resource in parsed.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    }
    assert {"process generate", "attempt", "kv lease", "process decode"} == set(spans)
    decode = spans["process decode"]
    assert ("0" * 15 + "3", "0" * 15 + "2") == (decode.span_id.hex(), decode.parent_span_id.hex())
    assert 70_000_000 == decode.end_time_unix_nano - decode.start_time_unix_nano
    assert (decode.status.STATUS_CODE_ERROR, "the worker <died>") == (
        decode.status.code,
        decode.status.message,
    )
    assert "first_token" == decode.events[0].name
    assert "f" * 32 == decode.links[0].trace_id.hex()
    values = {pair.key: pair.value for pair in decode.attributes}
    assert 7 == values["slipstream.num_steps"].int_value
    assert values["is_greedy"].bool_value
    assert b"\x00\xff" == values["raw"].bytes_value
    assert float("inf") == values["never"].double_value
    assert b"" == spans["process generate"].parent_span_id


def test_ids_are_hexadecimal_and_large_numbers_strings() -> None:
    (first,) = to_otlp(trace()[:1])["resourceSpans"][0]["scopeSpans"][0]["spans"]

    assert re.fullmatch("[0-9a-f]{32}", first["traceId"])
    assert re.fullmatch("[0-9]{19}", first["startTimeUnixNano"])


def test_spans_of_a_process_stand_together() -> None:
    assert 4 == len(to_otlp(trace())["resourceSpans"])
    assert 1 == len(to_otlp(trace()[:1] * 2)["resourceSpans"])


def test_what_was_written_is_read_again() -> None:
    written = json.loads(json.dumps(to_otlp(trace()), allow_nan=False))

    assert sorted(trace(), key=lambda span: span.start_ns) == from_otlp(written)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"resourceSpans": 3},
        {"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "a", "spanId": "b"}]}]}]},
    ],
)
def test_what_is_none_is_refused(data: Any) -> None:
    with pytest.raises(NoTraceError, match="no OTLP in JSON"):
        from_otlp(data)
