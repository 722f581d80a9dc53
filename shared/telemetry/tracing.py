"""Start spans and carry their context between processes; everything a service needs is here.

Without an OTLP endpoint tracing is off: the OpenTelemetry SDK is not even imported, and a span is
a context whose ids serve logs and answers.
"""

import time
from collections.abc import Mapping, Sequence

import msgspec

from slipstream.shared.telemetry.context import (
    SpanContext,
    extract,
    inject,
    new_span_id,
    new_trace_ids,
)
from slipstream.shared.telemetry.otlp_settings import read_settings, traces_endpoint
from slipstream.shared.telemetry.sampler import Sampler, create_sampler
from slipstream.shared.telemetry.spans import (
    Attributes,
    AttributeValue,
    Span,
    SpanEvent,
    SpanKind,
    SpanSink,
)

__all__ = [
    "AttributeValue",
    "Attributes",
    "Span",
    "SpanContext",
    "SpanEvent",
    "SpanKind",
    "Tracer",
    "create_tracer",
    "extract",
    "inject",
    "traces_endpoint",
]


class Tracer:
    """Starts spans. Without a sink (tracing is off) none of them is recorded."""

    def __init__(self, sink: SpanSink | None = None, sampler: Sampler | None = None) -> None:
        self._sink = sink
        self._sampler = sampler or create_sampler({})

    @property
    def is_on(self) -> bool:
        """True where sampled spans are exported."""
        return self._sink is not None

    def start(
        self,
        name: str,
        *,
        parent: SpanContext | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        context: SpanContext | None = None,
        start_time_ns: int | None = None,
        links: Sequence[SpanContext] = (),
    ) -> Span:
        """
        Start a span; the caller ends it.

        `context` resumes a span that another process has started: same ids, same start, and its
        parent unless `parent` says otherwise. Exactly one process may end it.
        """
        sink = self._sink
        if sink is None:
            # Passing the parent on keeps a trace whole across a process that adds nothing to it.
            return Span(name, context or parent or _new_root())
        if context is None:
            context = self._child_of(parent, start_time_ns or time.time_ns())
        elif parent is not None or start_time_ns is not None:
            context = _completed(context, parent, start_time_ns)
        if not context.is_sampled:
            return Span(name, context)
        return Span(name, context, sink, kind=kind, attributes=attributes, links=links)

    def flush(self, deadline_s: float = 2.0) -> bool:
        """
        Export what has ended; False where some of it was not exported in time.

        It blocks: from an event loop call it through `asyncio.to_thread`.
        """
        return self._sink is None or self._sink.flush(deadline_s)

    def shutdown(self, deadline_s: float = 2.0) -> bool:
        """Flush and end within the deadline, whatever the collector does; later spans are lost."""
        sink, self._sink = self._sink, None
        return sink is None or sink.shutdown(deadline_s)

    def _child_of(self, parent: SpanContext | None, start_time_ns: int) -> SpanContext:
        if parent is None:
            trace_id, span_id = new_trace_ids()
            return SpanContext(trace_id, span_id, self._sampler(trace_id, None), start_time_ns)
        return SpanContext(
            trace_id=parent.trace_id,
            span_id=new_span_id(),
            is_sampled=self._sampler(parent.trace_id, parent),
            start_time_ns=start_time_ns,
            parent_span_id=parent.span_id,
            trace_state=parent.trace_state,
        )


def _new_root() -> SpanContext:
    trace_id, span_id = new_trace_ids()
    return SpanContext(trace_id, span_id)


def _completed(
    context: SpanContext, parent: SpanContext | None, start_time_ns: int | None
) -> SpanContext:
    return msgspec.structs.replace(
        context,
        parent_span_id=parent.span_id if parent else context.parent_span_id,
        start_time_ns=start_time_ns or context.start_time_ns,
    )


def create_tracer(service_name: str, instance_id: str, environment: Mapping[str, str]) -> Tracer:
    """
    Return the tracer of this process, on or off as the OTEL_* variables say.

    Call it once in every process entry point, after any fork or spawn: it starts the thread that
    exports. On means an endpoint in OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
    OTEL_EXPORTER_OTLP_ENDPOINT, and neither OTEL_SDK_DISABLED=true nor OTEL_TRACES_EXPORTER=none.
    The name of the service is that of its role; OTEL_SERVICE_NAME is ignored, since all roles
    share one environment and a trace must show who did what. To tell deployments apart set
    `service.namespace` or `deployment.environment.name` in OTEL_RESOURCE_ATTRIBUTES.
    """
    settings = read_settings(environment)
    if settings is None:
        return Tracer()
    # Imported only here: the SDK costs start-up time and memory that a process without traces
    # should not pay.
    from slipstream.shared.telemetry.otlp import create_sink  # noqa: PLC0415 - loaded only where traces are exported

    sampler = create_sampler(environment)
    return Tracer(create_sink(settings, service_name, instance_id), sampler)
