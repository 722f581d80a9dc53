"""The spans of an attempt: the one that lasts as long, and the one of choosing its workers."""

from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.scheduling.placed import Placement
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.spans import Span
from slipstream.shared.telemetry.tracing import Tracer


def start_attempt(tracer: Tracer, record: RequestRecord, choice: Placement) -> Span:
    """Return the span of the attempt that begins."""
    return tracer.start(
        names.SPAN_ATTEMPT,
        parent=record.root.context,
        attributes={names.ATTEMPT: record.attempt, names.ROUTE: choice.route},
    )


def tell_schedule(
    tracer: Tracer, record: RequestRecord, choice: Placement, policy: str, num_waiting: int
) -> None:
    """Record how long the request waited, and where it goes and why."""
    tracer.start(
        names.SPAN_SCHEDULE,
        parent=record.root.context,
        start_time_ns=record.root.context.start_time_ns or None,
        attributes={
            names.QUEUE_TIME_S: record.queue_ms / 1000,
            names.ROUTE: choice.route,
            names.ROUTE_REASON: choice.reason,
            names.POLICY: policy,
            names.LATENCY_CLASS: record.request.latency_class,
            names.NUM_WAITING: num_waiting,
            names.NUM_CACHED_TOKENS: choice.num_cached_tokens,
            names.DECODE_WORKER_ID: choice.decode_worker_id,
            names.PREFILL_WORKER_ID: choice.prefill_worker_id or "",
        },
    ).end()
