"""Spans under explicit ids: who is whose parent, and what ends when."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from slipstream.shared.errors import ContextLengthError
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.sampler import create_sampler
from slipstream.shared.telemetry.spans import MAX_NUM_EVENTS, MAX_NUM_LINKS, FinishedSpan
from slipstream.shared.telemetry.tracing import SpanContext, SpanKind, Tracer, create_tracer


class ListSink:
    """Keeps finished spans."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def record(self, span: FinishedSpan) -> None:
        """Keep the span."""
        self.spans.append(span)

    def flush(self, deadline_s: float) -> bool:
        """Have nothing to wait for."""
        return deadline_s > 0

    def shutdown(self, deadline_s: float) -> bool:
        """Have nothing to end."""
        return deadline_s > 0


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


@pytest.fixture
def tracer(sink: ListSink) -> Tracer:
    return Tracer(sink)


def test_child_takes_trace_and_decision_from_its_parent(sink: ListSink, tracer: Tracer) -> None:
    parent = SpanContext("a" * 32, "b" * 16, is_sampled=True, trace_state="vendor=1")
    tracer.start("child", parent=parent, kind=SpanKind.CONSUMER).end()

    [span] = sink.spans
    assert parent.trace_id == span.context.trace_id
    assert parent.span_id == span.context.parent_span_id
    assert parent.trace_state == span.context.trace_state
    assert span.context.span_id != parent.span_id
    assert SpanKind.CONSUMER is span.kind


def test_root_has_no_parent_and_a_trace_of_its_own(sink: ListSink, tracer: Tracer) -> None:
    tracer.start("one").end()
    tracer.start("two").end()

    one, two = sink.spans
    assert one.context.parent_span_id is None
    assert one.context.trace_id != two.context.trace_id


def test_successor_ends_a_span_under_the_ids_it_was_started_with(sink: ListSink) -> None:
    """The first process dies without ending the span; its job holds all the second one needs."""
    client = SpanContext("a" * 32, "b" * 16, is_sampled=True)
    lost = Tracer(ListSink()).start(names.SPAN_PROCESS_GENERATE, parent=client)
    resumed = Tracer(sink).start(names.SPAN_PROCESS_GENERATE, context=lost.context)
    resumed.end()

    [span] = sink.spans
    assert lost.context == span.context
    assert client.span_id == span.context.parent_span_id
    assert lost.context.start_time_ns <= span.end_time_ns


def test_resumed_span_that_began_in_the_future_has_no_negative_duration(
    sink: ListSink, tracer: Tracer
) -> None:
    ahead = time.time_ns() + 10**12
    tracer.start(
        "attempt", context=SpanContext("a" * 32, "b" * 16, is_sampled=True, start_time_ns=ahead)
    ).end()

    assert ahead == sink.spans[0].end_time_ns


def test_unsampled_span_stays_unsampled_when_resumed(sink: ListSink, tracer: Tracer) -> None:
    tracer.start("attempt", context=SpanContext("a" * 32, "b" * 16, is_sampled=False)).end()

    assert not sink.spans


def test_only_the_first_end_counts(sink: ListSink, tracer: Tracer) -> None:
    span = tracer.start("attempt")
    span.end(error="deadline_exceeded")
    span.set("late", value=True)
    span.add_event("late")
    span.end()

    [finished] = sink.spans
    assert "deadline_exceeded" == finished.attributes[names.ERROR_TYPE]
    assert "late" not in finished.attributes
    assert not finished.events


def test_many_threads_end_a_span_once(sink: ListSink, tracer: Tracer) -> None:
    spans = [tracer.start("attempt") for _ in range(50)]
    start = threading.Barrier(4)

    def end_all() -> None:
        start.wait()
        for span in spans:
            span.end()

    threads = [threading.Thread(target=end_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(spans) == len(sink.spans)


def test_duration_comes_from_the_monotonic_clock(
    sink: ListSink, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is set back in between changes nothing."""
    span = tracer.start("attempt")
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    span.end()

    [finished] = sink.spans
    assert 0 <= finished.end_time_ns - finished.context.start_time_ns < 10**9


def test_start_and_end_can_be_told_afterwards(sink: ListSink, tracer: Tracer) -> None:
    tracer.start("schedule", start_time_ns=1000).end(end_time_ns=3000)

    assert (1000, 3000) == (sink.spans[0].context.start_time_ns, sink.spans[0].end_time_ns)


def test_exception_in_a_with_block_marks_the_span(sink: ListSink, tracer: Tracer) -> None:
    with pytest.raises(ContextLengthError), tracer.start("attempt"):
        raise ContextLengthError("prompt", "too long")
    with pytest.raises(asyncio.CancelledError), tracer.start("attempt"):
        raise asyncio.CancelledError

    ours, other = sink.spans
    assert "context_length_exceeded" == ours.attributes[names.ERROR_TYPE]
    assert "prompt: too long" == ours.error
    assert "CancelledError" == other.attributes[names.ERROR_TYPE]
    assert other.error is not None


def test_success_has_no_error(sink: ListSink, tracer: Tracer) -> None:
    with tracer.start("attempt", attributes={names.ATTEMPT: 1, names.ROUTE: None}) as span:
        span.set(names.WORKER_ID, "decode-1")
        span.set_many({names.NUM_STEPS: 3, names.QUEUE_TIME_S: None})

    [finished] = sink.spans
    assert finished.error is None
    assert {names.ATTEMPT: 1, names.WORKER_ID: "decode-1", names.NUM_STEPS: 3} == (
        finished.attributes
    )


def test_events_and_links_are_capped_and_the_rest_is_counted(
    sink: ListSink, tracer: Tracer
) -> None:
    links = [SpanContext("a" * 32, "b" * 16)] * (MAX_NUM_LINKS + 2)
    span = tracer.start(names.SPAN_STEP, links=links)
    for _ in range(MAX_NUM_EVENTS + 3):
        span.add_event(names.EVENT_PREEMPTED, {names.ATTEMPT: 1})
    span.end()

    [finished] = sink.spans
    assert MAX_NUM_EVENTS == len(finished.events)
    assert 3 == finished.attributes[names.NUM_EVENTS_DROPPED]
    assert MAX_NUM_LINKS == len(finished.links)
    assert 2 == finished.attributes[names.NUM_LINKS_DROPPED]


def test_a_failing_sink_does_not_reach_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenSink(ListSink):
        def record(self, span: FinishedSpan) -> None:
            raise OSError(f"no room for {span.name}")

    tracer = Tracer(BrokenSink())
    for _ in range(3):
        tracer.start("attempt").end()

    assert len(caplog.records) <= 1


def test_unsampled_root_has_children_that_are_not_recorded(sink: ListSink) -> None:
    tracer = Tracer(sink, create_sampler({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}))
    root = tracer.start("root")
    child = tracer.start("child", parent=root.context)
    child.end()
    root.end()

    assert not sink.spans
    assert not child.context.is_sampled
    assert root.context.trace_id == child.context.trace_id


def test_off_still_gives_ids_and_passes_a_parent_on() -> None:
    """Logs and answers have a trace id, and a process without traces does not tear one in two."""
    tracer = create_tracer("slipstream-decode", "decode-1", {})
    parent = SpanContext("a" * 32, "b" * 16, is_sampled=True)
    root = tracer.start("root")
    root.set("a", 1)
    root.add_event("b")
    root.end()

    assert not tracer.is_on
    assert not root.is_recording
    assert 32 == len(root.context.trace_id)
    assert not root.context.is_sampled
    assert parent == tracer.start("child", parent=parent).context
    assert tracer.shutdown()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_off_does_not_import_the_sdk(environment: dict[str, str]) -> None:
    program = (
        "import sys\n"
        "from slipstream.shared.telemetry.tracing import create_tracer, inject\n"
        "from slipstream.shared.telemetry.logging import configure_logging\n"
        "from slipstream.shared.telemetry.receiver import TraceReceiver\n"
        f"tracer = create_tracer('slipstream-kv', 'kv-1', {environment!r})\n"
        "with tracer.start('root') as span: inject(span.context)\n"
        "tracer.shutdown()\n"
        "unwanted = {'opentelemetry', 'google', 'requests', 'torch'}\n"
        "found = unwanted & {name.split('.')[0] for name in sys.modules}\n"
        "sys.exit(repr(found) if found else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
