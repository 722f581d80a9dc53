"""What identifies a span between processes, and its W3C form in message headers."""

import os
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

TraceIdHex = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
SpanIdHex = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]

_NUM_TRACE_HEX = 32
_MAX_TRACESTATE_CHARACTERS = 512  # what the W3C asks every hop to carry at least

# A later version may append fields; version ff is forbidden, and so are ids of zeros.
_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


class SpanContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    The ids of a span, as they travel in jobs and headers.

    `start_time_ns` (wall clock) and `parent_span_id` travel in jobs only: with them a successor
    process can end a span that it did not start.
    """

    trace_id: TraceIdHex
    span_id: SpanIdHex
    is_sampled: bool = False
    start_time_ns: int = 0
    parent_span_id: SpanIdHex | None = None
    trace_state: str = ""


def new_trace_ids() -> tuple[str, str]:
    """Return a new trace id and a new span id."""
    # The system's randomness: no state that a fork or somebody's `random.seed` could repeat.
    digits = os.urandom(24).hex()
    return digits[:_NUM_TRACE_HEX], digits[_NUM_TRACE_HEX:]


def new_span_id() -> str:
    """Return a new span id."""
    return os.urandom(8).hex()


def inject(context: SpanContext) -> dict[str, str]:
    """Return the headers that make `context` the parent of what the receiver does."""
    flags = "01" if context.is_sampled else "00"
    headers = {TRACEPARENT: f"00-{context.trace_id}-{context.span_id}-{flags}"}
    if context.trace_state:
        headers[TRACESTATE] = context.trace_state
    return headers


def extract(headers: Mapping[str, str] | None) -> SpanContext | None:
    """Return the sender's context, or None where there is none or it is malformed."""
    value = headers.get(TRACEPARENT) if headers else None
    if headers is None or not isinstance(value, str):
        return None
    match = _TRACEPARENT.fullmatch(value)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if more and version == "00":
        return None
    return SpanContext(
        trace_id=trace_id,
        span_id=span_id,
        # Bit 0 alone: current senders also set bit 1 ("the trace id is random").
        is_sampled=bool(int(flags, 16) & 1),
        trace_state=_valid_trace_state(headers.get(TRACESTATE)),
    )


def _valid_trace_state(value: object) -> str:
    """Return the value where it is safe to pass on; tracing goes on without it."""
    if not isinstance(value, str) or len(value) > _MAX_TRACESTATE_CHARACTERS:
        return ""
    return value if value.isascii() and value.isprintable() else ""
