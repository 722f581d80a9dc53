"""What `slipstream profile` makes of what the processes have counted. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.services.cli.text_table import right_aligned
from slipstream.shared.client.counters import ProcessSpan
from slipstream.shared.measure.estimate import describe_machine
from slipstream.shared.telemetry import metric_names
from slipstream.shared.worker.activities import ACTIVITIES

Row = dict[str, Any]  # Any: text, numbers, and rows within rows

_TITLES = {
    "waiting": "waiting",
    "weights": "weights",
    "kv": "KV",
    "arithmetic": "other arithmetic",
    "sampling": "sampling and text",
    "messages": "messages",
    "other": "other",
    "idle": "idle",
}


def activities_of(span: ProcessSpan) -> dict[str, float]:
    """
    Return the seconds of a process by what they went into.

    Workers of a model count them. The others do nothing but take and send messages, which takes as
    much time as they had a processor.
    """
    counted = span.by_label(metric_names.ACTIVITY.name)
    if counted:
        return {str(name): counted.get(name, 0.0) for name in ACTIVITIES}
    busy_s = min(span.cpu_s, span.seconds)
    return _nothing() | {"messages": busy_s, "idle": span.seconds - busy_s}


def token_activities(spans: Sequence[ProcessSpan]) -> dict[str, float]:
    """Return the seconds of all requests by what they went into, or were waited for."""
    found = _nothing()
    for span in spans:
        for name, seconds in span.by_label(metric_names.REQUEST_ACTIVITY.name).items():
            found[name] = found.get(name, 0.0) + seconds
        # In the scheduler's queue: those placed meanwhile.
        found["waiting"] += span.counts.get(f"{metric_names.QUEUE_TIME.name} sum", 0.0)
    return found


def _nothing() -> dict[str, float]:
    return {str(name): 0.0 for name in ACTIVITIES}


def report_of(spans: Sequence[ProcessSpan]) -> Row:
    """Return what `--json` writes."""
    num_tokens = sum(span.total(metric_names.OUTPUT_TOKENS.name) for span in spans)
    of_tokens = token_activities(spans)
    return {
        "machine": describe_machine(),
        "seconds": max(span.seconds for span in spans),
        "output_tokens": num_tokens,
        "request_seconds": sum(of_tokens.values()),
        "token_shares": _shares(of_tokens, sum(of_tokens.values())),
        "token_ms": {
            name: 1000 * seconds / num_tokens if num_tokens else None
            for name, seconds in of_tokens.items()
        },
        "services": [_service(span) for span in spans],
    }


def _service(span: ProcessSpan) -> Row:
    activities = activities_of(span)
    return {
        "service": span.worker_id,
        "role": span.role,
        "seconds": span.seconds,
        "cpu_share": span.cpu_s / span.seconds,
        "shares": _shares(activities, span.seconds),
        # Of the wall clock's time: what is named, whatever it is named.
        "accounted": sum(activities.values()) / span.seconds,
        "output_tokens": span.total(metric_names.OUTPUT_TOKENS.name),
    }


def _shares(seconds: Mapping[str, float], whole: float) -> dict[str, float]:
    return {name: value / whole if whole else 0.0 for name, value in seconds.items()}


def table(report: Row) -> str:
    """Return a line for a token, and one for each process."""
    columns = ["share of the time of", *_TITLES.values(), "CPU"]
    token = ["a token", *_percents(report["token_shares"]), "-"]
    services = [
        [each["service"], *_percents(each["shares"]), f"{each['cpu_share']:.0%}"]
        for each in report["services"]
    ]
    return "\n".join([right_aligned(columns, [token, *services]), "", _summary(report)])


def _percents(shares: Mapping[str, float]) -> list[str]:
    return [f"{shares[name]:.1%}" for name in _TITLES]


def _summary(report: Row) -> str:
    if not report["output_tokens"]:
        return f"no token was made in {report['seconds']:.1f} s"
    millis = sum(report["token_ms"].values())
    return (
        f"{report['output_tokens']:.0f} tokens in {report['seconds']:.1f} s, each after "
        f"{millis:.1f} ms of its request's time"
    )
