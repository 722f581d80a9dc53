"""Trace context survives the way through message headers, and nothing malformed gets in."""

import msgspec
import pytest

from slipstream.shared.telemetry.context import (
    SpanContext,
    extract,
    inject,
    new_span_id,
    new_trace_ids,
)

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"


@pytest.mark.parametrize("is_sampled", [True, False])
def test_context_survives_the_headers(is_sampled: bool) -> None:
    context = SpanContext(TRACE_ID, SPAN_ID, is_sampled, trace_state="vendor=1,other=2")

    assert context == extract(inject(context))


def test_headers_are_lower_case_and_without_empty_ones() -> None:
    headers = inject(SpanContext(TRACE_ID, SPAN_ID, is_sampled=True))

    assert {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"} == headers


@pytest.mark.parametrize(
    ("flags", "is_sampled"),
    [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True)],
)
def test_bit_0_of_the_flags_alone_says_sampled(flags: str, is_sampled: bool) -> None:
    context = extract({"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-{flags}"})

    assert context is not None
    assert is_sampled is context.is_sampled


def test_a_later_version_may_append_fields() -> None:
    context = extract({"traceparent": f"01-{TRACE_ID}-{SPAN_ID}-01-what-comes-later"})

    assert context is not None
    assert TRACE_ID == context.trace_id


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        f"00-{TRACE_ID}-{SPAN_ID}",
        f"00-{TRACE_ID}-{SPAN_ID}-1",
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",
        f"00-{TRACE_ID}-{SPAN_ID}-01\n",
        f" 00-{TRACE_ID}-{SPAN_ID}-01",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID[:-1]}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-0g",
    ],
)
def test_malformed_traceparent_is_no_context(traceparent: str) -> None:
    assert extract({"traceparent": traceparent}) is None


@pytest.mark.parametrize("headers", [None, {}, {"Traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}])
def test_no_header_is_no_context(headers: dict[str, str] | None) -> None:
    assert extract(headers) is None


@pytest.mark.parametrize("trace_state", ["a=1\r\nX-Evil: 1", "a=\u00e9", "a=" + "x" * 600])
def test_unsafe_tracestate_is_dropped_and_tracing_goes_on(trace_state: str) -> None:
    headers = inject(SpanContext(TRACE_ID, SPAN_ID)) | {"tracestate": trace_state}
    context = extract(headers)

    assert context is not None
    assert not context.trace_state


def test_a_job_with_malformed_ids_does_not_decode() -> None:
    """Ids are checked where messages are decoded: tracing never meets any that are not hex."""
    decoder = msgspec.msgpack.Decoder(SpanContext)

    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.msgpack.encode({"trace_id": "x" * 32, "span_id": SPAN_ID}))


def test_new_ids_have_the_sizes_of_the_standard_and_differ() -> None:
    trace_id, span_id = new_trace_ids()

    assert (32, 16, 16) == (len(trace_id), len(span_id), len(new_span_id()))
    assert trace_id != new_trace_ids()[0]
