"""An OTLP/HTTP receiver inside the process: `slipstream run` and the tests see the spans arrive.

It can pass on what it receives, so that a user's own collector gets every span as well.
"""

import collections
import logging
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self

from slipstream.shared.telemetry.forwarder import Forwarder
from slipstream.shared.telemetry.rate_limit import RateLimit
from slipstream.shared.telemetry.received import (
    MAX_BODY_BYTES,
    ReceivedSpan,
    RefusedError,
    decode_spans,
    decompress,
)

__all__ = ["ReceivedSpan", "TraceReceiver"]

TRACES_PATH: Final = "/v1/traces"

_MAX_NUM_TRACES = 1024
_MAX_NUM_SPANS_PER_TRACE = 1024
_SOCKET_TIMEOUT_S = 5.0
_MAX_NUM_DIGITS = 20  # of a Content-Length

_log = logging.getLogger(__name__)
_log.addFilter(RateLimit())


class SpanStore:
    """Keeps the spans of the latest traces; the trace that began to arrive first goes first."""

    def __init__(self, max_num_traces: int) -> None:
        self._max_num_traces = max_num_traces
        self._traces: collections.OrderedDict[str, list[ReceivedSpan]] = collections.OrderedDict()
        self._changed = threading.Condition()

    def add(self, spans: Iterable[ReceivedSpan]) -> None:
        """Store the spans and wake whoever waits for them."""
        with self._changed:
            for span in spans:
                trace = self._traces.setdefault(span.trace_id, [])
                if len(trace) < _MAX_NUM_SPANS_PER_TRACE:
                    trace.append(span)
                if len(self._traces) > self._max_num_traces:
                    self._traces.popitem(last=False)
            self._changed.notify_all()

    def spans(self, trace_id: str) -> list[ReceivedSpan]:
        """Return the spans of a trace by start time; empty where none is known."""
        with self._changed:
            return sorted(self._traces.get(trace_id, ()), key=lambda span: span.start_ns)

    def trace_ids(self) -> list[str]:
        """Return the known traces, in the order in which they began to arrive."""
        with self._changed:
            return list(self._traces)

    def wait_for(
        self, trace_id: str, is_enough: Callable[[list[ReceivedSpan]], bool], timeout_s: float
    ) -> bool:
        """Wait until the spans of a trace are enough; False where they were not in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: is_enough(self._traces.get(trace_id, [])), timeout_s
            )


class TraceReceiver:
    """
    Receives spans on a free port of 127.0.0.1 and keeps those of the latest traces.

    `forward_to` is the full address of another OTLP/HTTP traces endpoint. Bodies go there as they
    came, with the sender's headers: senders keep the user's OTEL_EXPORTER_OTLP_HEADERS.
    """

    def __init__(
        self, *, forward_to: str | None = None, max_num_traces: int = _MAX_NUM_TRACES
    ) -> None:
        self._store = SpanStore(max_num_traces)
        self._forward_to = forward_to
        self._forwarder: Forwarder | None = None
        self._server: _Server | None = None

    @property
    def endpoint(self) -> str:
        """The value for OTEL_EXPORTER_OTLP_ENDPOINT; known once started."""
        if self._server is None:
            raise RuntimeError("the trace receiver has not been started")
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def traces_endpoint(self) -> str:
        """The value for OTEL_EXPORTER_OTLP_TRACES_ENDPOINT; known once started."""
        return self.endpoint + TRACES_PATH

    def start(self) -> None:
        """Listen."""
        if self._server is not None:
            return
        if self._forward_to is not None:
            self._forwarder = Forwarder(self._forward_to)
        self._server = _Server(self._accept)
        # The interval is how long `stop` may have to wait.
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="otlp-receiver", daemon=True
        ).start()

    def stop(self, deadline_s: float = 2.0) -> None:
        """Stop listening and send on what still waits; the spans stay readable."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        forwarder, self._forwarder = self._forwarder, None
        if forwarder is not None:
            forwarder.stop(deadline_s)

    def spans(self, trace_id: str) -> list[ReceivedSpan]:
        """Return the spans of a trace by start time; empty where none is known."""
        return self._store.spans(trace_id)

    def trace_ids(self) -> list[str]:
        """Return the known traces, in the order in which they began to arrive."""
        return self._store.trace_ids()

    def services(self, trace_id: str) -> list[str]:
        """Return the services that added spans to a trace, by their first span's start."""
        return list(dict.fromkeys(span.service for span in self.spans(trace_id)))

    def wait_for(
        self, trace_id: str, is_enough: Callable[[list[ReceivedSpan]], bool], timeout_s: float
    ) -> bool:
        """Wait until the spans of a trace are enough; False where they were not in time."""
        return self._store.wait_for(trace_id, is_enough, timeout_s)

    def wait_for_root(self, trace_id: str, timeout_s: float) -> bool:
        """Wait for the root of a trace. Other processes' spans may arrive after it."""
        return self.wait_for(trace_id, lambda spans: any(span.is_root for span in spans), timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _accept(self, body: bytes, headers: dict[str, str]) -> None:
        """Store the spans of a request and pass it on. Raises RefusedError."""
        encoding = headers.get("content-encoding", "identity").lower()
        self._store.add(decode_spans(decompress(body, encoding)))
        if self._forwarder is not None:
            self._forwarder.forward(body, headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, accept: Callable[[bytes, dict[str, str]], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.accept = accept

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the base's arguments
        """Say so in the log, not on stderr, when a sender hangs up."""
        _log.warning("trace_request_failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.0, one request a connection: nothing lingers after `stop`."""

    server: _Server
    timeout = _SOCKET_TIMEOUT_S

    def do_POST(self) -> None:
        """Accept an ExportTraceServiceRequest."""
        try:
            self.server.accept(self._body(), {k.lower(): v for k, v in self.headers.items()})
        except RefusedError as error:
            self.send_error(error.status, str(error))
            return
        # An empty ExportTraceServiceResponse has no bytes.
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Keep requests out of the log."""

    def _body(self) -> bytes:
        if self.path != TRACES_PATH:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"only {TRACES_PATH}")
        if self.headers.get_content_type() != "application/x-protobuf":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "only application/x-protobuf")
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "no Content-Length")
        # Python makes no number of thousands of digits.
        if len(length) > _MAX_NUM_DIGITS or int(length) > MAX_BODY_BYTES:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body too large")
        return self.rfile.read(int(length))
