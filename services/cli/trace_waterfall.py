"""A trace as lines of text: who did what, when, for how long. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from slipstream.shared.messages.traces import TraceSummary
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.received import ReceivedSpan, ReceivedValue
from slipstream.shared.telemetry.trace_summary import request_id_of

_NS_A_MS = 1e6
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MIN_BAR = 16
_PREFIX = "slipstream-"
# What answers why a request was slow, by the words that people use for it.
NOTABLE: Mapping[str, str] = {
    names.QUEUE_TIME_S: "queued s",
    names.ROUTE: "route",
    names.ROUTE_REASON: "because",
    names.GEN_AI_USAGE_INPUT_TOKENS: "prompt tokens",
    names.NUM_CACHED_TOKENS: "cached",
    names.NUM_CHUNKS: "chunks",
    names.TRANSFER_NUM_BYTES: "bytes moved",
    names.LEASE_NUM_BLOCKS: "blocks",
    names.NUM_STEPS: "steps",
    names.NUM_SEQUENCES: "batch",
    names.GEN_AI_USAGE_OUTPUT_TOKENS: "tokens",
    names.TIME_TO_FIRST_TOKEN_S: "first token s",
    names.TIME_PER_OUTPUT_TOKEN_S: "a token s",
    names.NUM_DRAFT_TESTED: "drafts tested",
    names.NUM_DRAFT_ACCEPTED: "accepted",
    names.NUM_PREEMPTIONS: "preemptions",
    names.ERROR_TYPE: "error",
}


@dataclass(frozen=True)
class Row:
    """A span and how deep it lies in its trace."""

    span: ReceivedSpan
    depth: int


def rows_of(spans: Sequence[ReceivedSpan]) -> list[Row]:
    """Return spans with children behind their parents, each level by start time."""
    known = {span.span_id for span in spans}
    children: dict[str | None, list[ReceivedSpan]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        parent = span.parent_span_id if span.parent_span_id in known else None
        children.setdefault(parent, []).append(span)
    found = []
    waiting = [Row(span, 0) for span in reversed(children.get(None, []))]
    while waiting:
        row = waiting.pop()
        found.append(row)
        below = children.pop(row.span.span_id, [])
        waiting += [Row(span, row.depth + 1) for span in reversed(below)]
    return found


def waterfall(
    spans: Sequence[ReceivedSpan], width: int, *, has_attributes: bool = False
) -> list[str]:
    """Return the lines that show a trace within so many columns."""
    rows = rows_of(spans)
    start_ns = min(span.start_ns for span in spans)
    end_ns = max(span.end_ns for span in spans)
    labels = [f"{'  ' * row.depth}{row.span.name}" for row in rows]
    who = max(len(role_of(row.span)) for row in rows)
    label = max(map(len, labels))
    times = len(_ms(end_ns - start_ns)) + 2
    bar = max(_MIN_BAR, width - who - label - 2 * times - 4)
    lines = [title(spans), ""]
    for row, text in zip(rows, labels, strict=True):
        span = row.span
        lines.append(
            f"{role_of(span):<{who}} {text:<{label}} {_ms(span.start_ns - start_ns):>{times}}"
            f"{_ms(span.end_ns - span.start_ns):>{times}}  "
            f"{_bar(span, start_ns, end_ns, bar)}".rstrip()
        )
        indent = " " * (who + 1) + "  " * (row.depth + 1)
        lines += [f"{indent}{note}" for note in notes_of(span, is_all=has_attributes)]
    return lines


def title(spans: Sequence[ReceivedSpan]) -> str:
    """Return which trace it is, how long it took, and who took part."""
    start_ns = min(span.start_ns for span in spans)
    taken = _ms(max(span.end_ns for span in spans) - start_ns)
    services = dict.fromkeys(role_of(span) for span in sorted(spans, key=lambda s: s.start_ns))
    request_id = request_id_of(spans)
    request = f", request {request_id}" if request_id else ""
    return (
        f"trace {spans[0].trace_id}{request}: {taken} ms, {len(spans)} spans of "
        f"{', '.join(services)}; {_moment(start_ns)}"
    )


def role_of(span: ReceivedSpan) -> str:
    """Return a service's role."""
    return span.service.removeprefix(_PREFIX)


def notes_of(span: ReceivedSpan, *, is_all: bool = False) -> Iterator[str]:
    """Yield what a span says of itself: what is notable in a line, or everything."""
    if span.is_error:
        yield f"! {span.error or span.attributes.get(names.ERROR_TYPE, 'error')}"
    if is_all:
        yield from (f"{key} = {_value(value)}" for key, value in sorted(span.attributes.items()))
        start_ns = span.start_ns
        yield from (
            f"@ {each.name} after {_ms(each.time_ns - start_ns)} ms" for each in span.events
        )
        return
    told = [
        f"{word} {_value(span.attributes[name])}"
        for name, word in NOTABLE.items()
        if span.attributes.get(name) not in (None, "", 0)
    ]
    if told:
        yield ", ".join(told)


def list_lines(traces: Sequence[TraceSummary]) -> list[str]:
    """Return a table of traces."""
    columns = "{:<34}{:<28}{:<22}{:>10}{:>7}  {}"
    lines = [columns.format("trace", "request", "began", "ms", "spans", "services")]
    for each in traces:
        services = ", ".join(name.removeprefix(_PREFIX) for name in each.services)
        ending = f"  ! {each.error}" if each.error else ""
        lines.append(
            columns.format(
                each.trace_id,
                each.request_id or each.name or "-",
                _moment(each.start_ns),
                _ms(each.end_ns - each.start_ns),
                each.num_spans,
                services + ending,
            )
        )
    return lines


def _bar(span: ReceivedSpan, start_ns: int, end_ns: int, width: int) -> str:
    """Return a bar in eighths of a column, at least one of them wide."""
    eighths = 8 * width / max(1, end_ns - start_ns)
    begins = min(round((span.start_ns - start_ns) * eighths), 8 * width - 1)
    ends = max(begins + 1, min(round((span.end_ns - start_ns) * eighths), 8 * width))
    # There are no blocks that fill the right part of a column: it begins with a whole one.
    column = begins // 8
    whole, rest = divmod(ends - 8 * column, 8)
    return f"{' ' * column}{'█' * whole}{_EIGHTHS[rest].strip()}"


def _value(value: ReceivedValue) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return str(value)


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / _NS_A_MS:,.1f}"


def _moment(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
