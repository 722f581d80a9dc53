"""Questions for the traces that a supervisor keeps, and their answers."""

from typing import Any

import msgspec

from slipstream.shared.messages.common import Message


class TraceRequest(Message, frozen=True, tag="trace_request"):
    """Asks for one trace by its own id or by its request's; without an id for the latest ones."""

    id: str = ""


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in a list. Times in nanoseconds of Unix time."""

    trace_id: str
    name: str  # of its root; empty while that has not come
    start_ns: int
    end_ns: int
    num_spans: int
    services: list[str]
    request_id: str = ""
    error: str = ""


class TraceFound(Message, frozen=True, tag="trace_found"):
    """One trace as OTLP in JSON (TracesData of the protocol), which other viewers read too."""

    trace_id: str
    otlp: dict[str, Any]  # Any: JSON


class TracesFound(Message, frozen=True, tag="traces_found"):
    """The latest traces, the newest first."""

    traces: list[TraceSummary]
