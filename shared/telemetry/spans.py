"""A span while it runs, and the finished record of it that is exported.

Spans are recorded under explicit ids and handed over when they end; there is no ambient "current
span". What another process takes as parent must not depend on a task's context, and a successor
process must be able to end a span under the ids that it was started with.
"""

import enum
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec

from slipstream.shared.errors import SlipstreamError
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.telemetry.rate_limit import RateLimit

AttributeValue = (
    str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
)
Attributes = Mapping[str, AttributeValue | None]

MAX_NUM_EVENTS = 128  # the SDK's limit; it would drop the rest without a word
MAX_NUM_LINKS = 128
_MAX_ERROR_CHARACTERS = 512

_log = logging.getLogger(__name__)
_log.addFilter(RateLimit())


class SpanKind(enum.IntEnum):
    """OpenTelemetry's kinds, under the numbers that the SDK gives them."""

    INTERNAL = 0
    SERVER = 1
    CLIENT = 2
    PRODUCER = 3
    CONSUMER = 4


class SpanEvent(msgspec.Struct, frozen=True):
    """Something that happened at one moment of a span."""

    name: str
    time_ns: int
    attributes: dict[str, AttributeValue]


class FinishedSpan(msgspec.Struct, frozen=True):
    """All that is known of a span that has ended. `error` is the description, None for success."""

    name: str
    kind: SpanKind
    context: SpanContext
    end_time_ns: int
    attributes: dict[str, AttributeValue]
    events: list[SpanEvent]
    links: tuple[SpanContext, ...]
    error: str | None


class SpanSink(Protocol):
    """Where finished spans go."""

    def record(self, span: FinishedSpan) -> None:
        """Take a span without blocking; the caller does not wait for its export."""

    def flush(self, deadline_s: float) -> bool:
        """Export what was recorded; False where some of it was not exported in time."""

    def shutdown(self, deadline_s: float) -> bool:
        """Flush and end; False where some spans were not exported in time."""


class Span:
    """
    A span that has started. Without a sink it only has a context, and everything else is free.

    `end` may be called often and from any thread: the first call counts.
    """

    __slots__ = (
        "_attributes",
        "_error",
        "_events",
        "_kind",
        "_links",
        "_lock",
        "_name",
        "_num_events",
        "_sink",
        "_started_monotonic_ns",
        "_started_ns",
        "context",
    )

    def __init__(
        self,
        name: str,
        context: SpanContext,
        sink: SpanSink | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        links: Sequence[SpanContext] = (),
    ) -> None:
        self.context = context
        self._sink = sink
        if sink is None:
            return
        self._name = name
        self._kind = kind
        self._links = links
        self._attributes: dict[str, AttributeValue] = {}
        self._events: list[SpanEvent] = []
        self._num_events = 0
        self._error: str | None = None
        self._lock = threading.Lock()
        # The wall clock once; from here on the monotonic one, so that no clock step shows.
        self._started_ns = time.time_ns()
        self._started_monotonic_ns = time.perf_counter_ns()
        if attributes:
            self.set_many(attributes)

    @property
    def is_recording(self) -> bool:
        """True until the end of a span that will be exported: guards costly attributes."""
        return self._sink is not None

    def set(self, key: str, value: AttributeValue | None) -> None:
        """Set an attribute; None leaves it as it is."""
        if self._sink is not None and value is not None:
            self._attributes[key] = value

    def set_many(self, attributes: Attributes) -> None:
        """Set the attributes that are not None."""
        if self._sink is not None:
            self._attributes.update({k: v for k, v in attributes.items() if v is not None})

    def add_event(self, name: str, attributes: Attributes | None = None) -> None:
        """Note that something happened now. For rare things: never once a token."""
        if self._sink is None:
            return
        with self._lock:
            self._num_events += 1
            if len(self._events) < MAX_NUM_EVENTS:
                present = {k: v for k, v in (attributes or {}).items() if v is not None}
                self._events.append(SpanEvent(name, self._now_ns(), present))

    def end(
        self,
        error: BaseException | str | None = None,
        *,
        description: str | None = None,
        end_time_ns: int | None = None,
    ) -> None:
        """
        End the span and hand it over for export.

        `error` marks a failure: an exception, or the name of one of few kinds of error such as
        `deadline_exceeded`. Only `description` may hold what differs from case to case.
        """
        sink = self._take_sink()
        if sink is None:
            return
        try:
            sink.record(self._finish(error, description, end_time_ns))
        except Exception:  # noqa: BLE001 - telemetry never fails the request that it describes
            _log.exception("span_not_recorded")

    def _take_sink(self) -> SpanSink | None:
        """Return the sink to the first caller and None to every other."""
        if self._sink is None:
            return None
        with self._lock:
            sink, self._sink = self._sink, None
            return sink

    def _now_ns(self) -> int:
        return self._started_ns + time.perf_counter_ns() - self._started_monotonic_ns

    def _finish(
        self, error: BaseException | str | None, description: str | None, end_time_ns: int | None
    ) -> FinishedSpan:
        attributes = dict(self._attributes)
        if error is not None:
            attributes[names.ERROR_TYPE] = _error_type(error)
            description = (description or str(error))[:_MAX_ERROR_CHARACTERS]
        if self._num_events > len(self._events):
            attributes[names.NUM_EVENTS_DROPPED] = self._num_events - len(self._events)
        if len(self._links) > MAX_NUM_LINKS:
            attributes[names.NUM_LINKS_DROPPED] = len(self._links) - MAX_NUM_LINKS
        end_time_ns = self._now_ns() if end_time_ns is None else end_time_ns
        return FinishedSpan(
            name=self._name,
            kind=self._kind,
            context=self.context,
            # A resumed span began by another host's clock, which may be ahead of ours.
            end_time_ns=max(end_time_ns, self.context.start_time_ns),
            attributes=attributes,
            events=self._events,
            links=tuple(self._links[:MAX_NUM_LINKS]),
            error=None if error is None else description,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(error)


def _error_type(error: BaseException | str) -> str:
    match error:
        case str():
            return error
        case SlipstreamError():
            return error.code
        case _:
            return type(error).__qualname__
