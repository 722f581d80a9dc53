"""One span a sequence, from its opening to its close."""

from collections import OrderedDict

from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.draft import DraftClose, DraftOpen
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.telemetry.spans import Span, SpanKind
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.report_book import Attempt


class DraftSpans:
    """Bounded like the proposer: a span whose close never came ends when its place is needed."""

    def __init__(self, tracer: Tracer, worker_id: WorkerId, max_num_spans: int) -> None:
        self._tracer = tracer
        self._worker_id = worker_id
        self._max_num_spans = max_num_spans
        self._spans: OrderedDict[Attempt, Span] = OrderedDict()

    def open(self, message: DraftOpen, parent: SpanContext | None) -> None:
        """Start the sequence's span; a repeated opening changes nothing."""
        attempt = (message.request_id, message.attempt)
        if parent is None or attempt in self._spans:
            return
        self._spans[attempt] = self._tracer.start(
            names.SPAN_DRAFT,
            parent=parent,
            kind=SpanKind.CONSUMER,
            attributes={names.WORKER_ID: self._worker_id, names.ATTEMPT: message.attempt},
        )
        while len(self._spans) > self._max_num_spans:
            self._spans.popitem(last=False)[1].end("close_lost")

    def close(self, message: DraftClose) -> None:
        """End the sequence's span with what the target said of the drafts."""
        span = self._spans.pop((message.request_id, message.attempt), None)
        if span is not None:
            span.set(names.NUM_DRAFT_PROPOSED, message.num_drafted_tokens)
            span.set(names.NUM_DRAFT_ACCEPTED, message.num_accepted_tokens)
            span.end()

    def end_all(self) -> None:
        """End what is open: this process stops."""
        for span in self._spans.values():
            span.end()
        self._spans.clear()
