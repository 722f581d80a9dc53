"""What a trace is, in a line: of which request, how long, who took part, how it ended. Pure."""

from collections.abc import Sequence

from slipstream.shared.messages.traces import TraceSummary
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.received import ReceivedSpan


def request_id_of(spans: Sequence[ReceivedSpan]) -> str:
    """Return the id of the request that a trace is of; empty where no span tells."""
    found = (span.attributes.get(names.MESSAGING_CONVERSATION_ID) for span in spans)
    return next((str(each) for each in found if each), "")


def root_of(spans: Sequence[ReceivedSpan]) -> ReceivedSpan | None:
    """Return the span that no other of the trace is a parent of, the earliest of several."""
    known = {span.span_id for span in spans}
    tops = [span for span in spans if span.parent_span_id not in known]
    return min(tops, key=lambda span: span.start_ns, default=None)


def summary_of(trace_id: str, spans: Sequence[ReceivedSpan]) -> TraceSummary:
    """Describe a trace that has spans."""
    root = root_of(spans)
    return TraceSummary(
        trace_id=trace_id,
        name=root.name if root is not None and root.parent_span_id is None else "",
        start_ns=min(span.start_ns for span in spans),
        end_ns=max(span.end_ns for span in spans),
        num_spans=len(spans),
        services=list(
            dict.fromkeys(span.service for span in sorted(spans, key=lambda span: span.start_ns))
        ),
        request_id=request_id_of(spans),
        error=next((span.error or span.name for span in spans if span.is_error), ""),
    )
