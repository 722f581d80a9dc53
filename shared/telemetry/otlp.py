"""Hand finished spans to the OpenTelemetry SDK's batch processor and OTLP exporter.

Imported only where tracing is on. Spans arrive finished and under explicit ids, so of the SDK only
the exporting half is used: no tracer provider, no context, no sampler.
"""

import importlib
import logging
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.telemetry.otlp_settings import GRPC, OtlpSettings
from slipstream.shared.telemetry.rate_limit import RateLimit
from slipstream.shared.telemetry.spans import FinishedSpan, SpanKind

# After the deadline: enough to close a socket.
_ABANDON_S = 0.2

# A collector that is away must not fill the log: these say so again at every batch.
_TALKATIVE_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.sdk._shared_internal",
)
_RATE_LIMIT = RateLimit()

_GRPC_MODULE = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"

_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)


class CountingExporter(SpanExporter):
    """Another exporter that counts what it could not deliver and can be told to give up."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_closed = False
        self.num_failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the batch unless the time for it is over."""
        result = SpanExportResult.FAILURE
        try:
            if not self._is_closed:
                result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self.num_failed += len(spans)
        return result

    def shutdown(self) -> None:
        """Give up: a running export stops waiting for its next try, further batches are dropped."""
        if not self._is_closed:
            self._is_closed = True
            self._exporter.shutdown()


class OtlpSink:
    """Batches finished spans and exports them on a thread of its own."""

    def __init__(self, exporter: SpanExporter, settings: OtlpSettings, resource: Resource) -> None:
        self._resource = resource
        self._scope = InstrumentationScope("slipstream", _version())
        self._exporter = CountingExporter(exporter)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=settings.max_queue_size,
            schedule_delay_millis=settings.schedule_delay_ms,
            max_export_batch_size=settings.max_batch_size,
        )

    def record(self, span: FinishedSpan) -> None:
        """Queue the span. A full queue drops the oldest span in it."""
        self._processor.on_end(_readable(span, self._resource, self._scope))

    def flush(self, deadline_s: float) -> bool:
        """Export what is queued; False where some of it was not delivered in time."""
        num_failed = self._exporter.num_failed
        # The SDK's own deadline is not implemented, so the wait is bounded from outside.
        is_done = _ended_within(deadline_s, self._processor.force_flush)
        return is_done and self._exporter.num_failed == num_failed

    def shutdown(self, deadline_s: float) -> bool:
        """Flush and end the thread; when the time is up, drop what is left."""
        num_failed = self._exporter.num_failed
        is_done = _ended_within(deadline_s, self._processor.shutdown)
        if not is_done:
            _ended_within(_ABANDON_S, self._exporter.shutdown)
        return is_done and self._exporter.num_failed == num_failed


def create_sink(settings: OtlpSettings, service_name: str, instance_id: str) -> OtlpSink:
    """Return a sink that exports as the settings say. Raises ConfigurationError."""
    exporter = _grpc_exporter(settings) if settings.protocol == GRPC else _http_exporter(settings)
    for name in _TALKATIVE_LOGGERS:
        logging.getLogger(name).addFilter(_RATE_LIMIT)
    # Not Resource.create(): it would read the process's environment and let OTEL_SERVICE_NAME win.
    resource = Resource(
        {
            "telemetry.sdk.language": "python",
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.sdk.version": metadata.version("opentelemetry-sdk"),
            **settings.resource_attributes,
            names.SERVICE_NAME: service_name,
            names.SERVICE_VERSION: _version(),
            names.SERVICE_INSTANCE_ID: instance_id,
        }
    )
    return OtlpSink(exporter, settings, resource)


def _http_exporter(settings: OtlpSettings) -> SpanExporter:
    import requests  # noqa: PLC0415 - with the exporter, as below
    from opentelemetry.exporter.otlp.proto.http import Compression  # noqa: PLC0415 - not with grpc
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - loaded only where traces are exported
        OTLPSpanExporter,
    )

    session = None
    if urlsplit(settings.endpoint).hostname in {"127.0.0.1", "::1", "localhost"}:
        # A proxy from HTTP_PROXY could not reach this machine's own loopback address.
        session = requests.Session()
        session.trust_env = False
    return OTLPSpanExporter(
        endpoint=settings.endpoint,
        certificate_file=settings.certificate,
        client_key_file=settings.client_key,
        client_certificate_file=settings.client_certificate,
        headers=settings.headers,
        timeout=settings.timeout_s,
        compression=Compression(settings.compression),
        session=session,
    )


def _grpc_exporter(settings: OtlpSettings) -> SpanExporter:
    try:
        # Optional: grpcio is large and HTTP reaches every collector.
        module = importlib.import_module(_GRPC_MODULE)
    except ImportError as error:
        raise ConfigurationError(
            "OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs an optional exporter: "
            "pip install 'slipstream[otlp-grpc]', or use http/protobuf"
        ) from error
    exporter: SpanExporter = module.OTLPSpanExporter(
        endpoint=settings.endpoint,
        headers={key.lower(): value for key, value in settings.headers.items()},
        timeout=settings.timeout_s,
    )
    return exporter


def _readable(span: FinishedSpan, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    context = span.context
    status = trace.Status() if span.error is None else _error_status(span.error)
    return ReadableSpan(
        name=span.name,
        context=_sdk_context(context.trace_id, context.span_id, context.trace_state),
        parent=_parent(span),
        resource=resource,
        attributes=span.attributes,
        events=[Event(event.name, event.attributes, event.time_ns) for event in span.events],
        links=[trace.Link(_linked(link)) for link in span.links],
        kind=trace.SpanKind(span.kind.value),
        status=status,
        start_time=context.start_time_ns,
        end_time=span.end_time_ns,
        instrumentation_scope=scope,
    )


def _error_status(description: str) -> trace.Status:
    return trace.Status(trace.StatusCode.ERROR, description)


def _parent(span: FinishedSpan) -> trace.SpanContext | None:
    if span.context.parent_span_id is None:
        return None
    # By definition of these kinds the parent is in another process.
    is_remote = span.kind in {SpanKind.SERVER, SpanKind.CONSUMER}
    return _sdk_context(span.context.trace_id, span.context.parent_span_id, is_remote=is_remote)


def _linked(link: SpanContext) -> trace.SpanContext:
    return _sdk_context(link.trace_id, link.span_id, is_remote=True)


def _sdk_context(
    trace_id: str, span_id: str, trace_state: str = "", *, is_remote: bool = False
) -> trace.SpanContext:
    return trace.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote,
        _SAMPLED,
        trace.TraceState.from_header([trace_state]) if trace_state else None,
    )


def _ended_within(deadline_s: float, act: Callable[[], object]) -> bool:
    """Do something that may block on a thread of its own; False where it is not done in time."""
    # A daemon thread, since the interpreter would wait for any other kind before it exits.
    thread = threading.Thread(target=act, name="telemetry-deadline", daemon=True)
    thread.start()
    thread.join(deadline_s)
    return not thread.is_alive()


def _version() -> str:
    try:
        return metadata.version("slipstream")
    except metadata.PackageNotFoundError:
        return "0"
