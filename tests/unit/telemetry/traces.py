"""Spans to make a trace of."""

from typing import Any

from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.received import ReceivedEvent, ReceivedLink, ReceivedSpan

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
REQUEST = "k3x9qp2mab4c7d2e5f6g8h9j"
START_NS = 1_796_000_000_000_000_000
_MS = 1_000_000


def span(
    number: int,
    name: str,
    service: str,
    times_ms: tuple[float, float],
    parent: int | None = None,
    **fields: Any,  # Any: those of a span
) -> ReceivedSpan:
    """Return a span whose id is its number."""
    start_ms, end_ms = times_ms
    return ReceivedSpan(
        **{
            "name": name,
            "service": f"slipstream-{service}",
            "trace_id": TRACE,
            "span_id": f"{number:016x}",
            "parent_span_id": None if parent is None else f"{parent:016x}",
            "kind": 1,
            "start_ns": START_NS + round(start_ms * _MS),
            "end_ns": START_NS + round(end_ms * _MS),
            "attributes": {},
            "resource": {names.SERVICE_NAME: f"slipstream-{service}", "process.pid": number % 2},
            **fields,
        }
    )


def trace() -> list[ReceivedSpan]:
    """Return a trace of a request that failed in its decode worker."""
    return [
        span(
            3,
            "process decode",
            "decode",
            (20, 90),
            2,
            attributes={
                "slipstream.num_steps": 7,
                "ratio": 0.5,
                "is_greedy": True,
                "reasons": ["a", "b"],
                "raw": b"\x00\xff",
                "map": {"deep": [1, None]},
                "never": float("inf"),
            },
            events=(ReceivedEvent("first_token", START_NS + 30 * _MS, {"at": 1}),),
            links=(ReceivedLink("f" * 32, "e" * 16),),
            is_error=True,
            error="the worker <died>",
        ),
        span(
            1,
            "process generate",
            "scheduler",
            (0, 100),
            attributes={names.MESSAGING_CONVERSATION_ID: REQUEST},
        ),
        span(2, "attempt", "scheduler", (10, 95), 1),
        span(4, "kv lease", "kv", (12, 13), 2),
    ]
