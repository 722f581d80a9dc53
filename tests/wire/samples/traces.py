"""Samples of questions for traces and their answers."""

import msgspec

from slipstream.shared.messages.traces import TraceFound, TraceRequest, TracesFound, TraceSummary

from .parts import REQUEST

_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

SAMPLES: dict[str, tuple[msgspec.Struct, msgspec.Struct]] = {
    "trace_request": (TraceRequest(id=_TRACE), TraceRequest()),
    "trace_found": (
        TraceFound(trace_id=_TRACE, otlp={"resourceSpans": [{"scopeSpans": []}]}),
        TraceFound(trace_id=_TRACE, otlp={}),
    ),
    "traces_found": (
        TracesFound(
            traces=[
                TraceSummary(
                    trace_id=_TRACE,
                    name="process generate",
                    start_ns=1_796_000_000_000_000_000,
                    end_ns=1_796_000_000_339_500_000,
                    num_spans=8,
                    services=["slipstream-scheduler", "slipstream-decode"],
                    request_id=REQUEST,
                    error="why",
                )
            ]
        ),
        TracesFound(traces=[]),
    ),
}
