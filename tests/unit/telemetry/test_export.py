"""Spans through the real OTLP exporter: into our receiver, into another one, and into nothing."""

import asyncio
import importlib.util
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.otlp_settings import read_settings
from slipstream.shared.telemetry.receiver import TraceReceiver
from slipstream.shared.telemetry.tracing import (
    SpanContext,
    SpanKind,
    create_tracer,
    extract,
    inject,
    traces_endpoint,
)


@pytest.fixture
def receiver() -> Iterator[TraceReceiver]:
    with TraceReceiver() as receiver:
        yield receiver


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_two_services_make_one_trace_with_one_root(receiver: TraceReceiver) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_SERVICE_NAME": "ignored",
        "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=demo,deployment.environment.name=a%20b",
    }
    scheduler = create_tracer(names.SERVICE_SCHEDULER, "scheduler-1", environment)
    prefill = create_tracer(names.SERVICE_PREFILL, "prefill-1", environment)
    root = scheduler.start(names.SPAN_PROCESS_GENERATE, kind=SpanKind.CONSUMER)
    send = scheduler.start(
        names.SPAN_SEND_PREFILL, parent=root.context, kind=SpanKind.PRODUCER, attributes={"a": 1}
    )
    send.end()
    process = prefill.start(
        names.SPAN_PROCESS_PREFILL, parent=extract(inject(send.context)), kind=SpanKind.CONSUMER
    )
    process.add_event(names.EVENT_FIRST_TOKEN)
    process.set(names.GEN_AI_RESPONSE_FINISH_REASONS, ["stop"])
    process.end("deadline_exceeded", description="no answer")
    root.end()

    assert scheduler.shutdown()
    assert prefill.shutdown()
    assert receiver.wait_for_root(root.context.trace_id, 5)
    first, second, third = receiver.spans(root.context.trace_id)
    assert [None, first.span_id, second.span_id] == [
        first.parent_span_id,
        second.parent_span_id,
        third.parent_span_id,
    ]
    assert [names.SERVICE_SCHEDULER, names.SERVICE_PREFILL] == receiver.services(first.trace_id)
    assert ("demo", "a b", "prefill-1") == (
        third.resource["service.namespace"],
        third.resource["deployment.environment.name"],
        third.resource[names.SERVICE_INSTANCE_ID],
    )
    assert 1 == second.attributes["a"]
    assert ["stop"] == third.attributes[names.GEN_AI_RESPONSE_FINISH_REASONS]
    assert (names.EVENT_FIRST_TOKEN,) == third.event_names
    assert (True, "no answer") == (third.is_error, third.error)
    assert first.start_ns <= second.start_ns <= second.end_ns <= third.start_ns


def test_resumed_root_arrives_once_with_its_old_ids(receiver: TraceReceiver) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    tracer = create_tracer(names.SERVICE_SCHEDULER, "scheduler-2", environment)
    lost = SpanContext("a" * 32, "b" * 16, is_sampled=True, start_time_ns=time.time_ns() - 10**9)
    tracer.start(names.SPAN_PROCESS_GENERATE, context=lost).end()

    assert tracer.flush()
    [span] = receiver.spans(lost.trace_id)
    assert (lost.span_id, None, lost.start_time_ns) == (
        span.span_id,
        span.parent_span_id,
        span.start_ns,
    )
    assert span.end_ns - span.start_ns >= 10**9
    tracer.shutdown()


def test_links_and_headers_and_compression_arrive(receiver: TraceReceiver) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": receiver.traces_endpoint,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    tracer = create_tracer(names.SERVICE_DECODE, "decode-1", environment)
    request = SpanContext("c" * 32, "d" * 16, is_sampled=True)
    step = tracer.start(names.SPAN_STEP, links=[request])
    step.end()

    assert tracer.shutdown()
    [span] = receiver.spans(step.context.trace_id)
    assert (request.trace_id,) == span.linked_trace_ids


def test_nothing_is_exported_when_nothing_is_sampled(receiver: TraceReceiver) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0",
    }
    tracer = create_tracer(names.SERVICE_SCHEDULER, "scheduler-1", environment)
    root = tracer.start("root")
    tracer.start("child", parent=root.context).end()
    root.end()

    assert tracer.shutdown()
    assert not receiver.trace_ids()


def test_spans_are_exported_without_a_flush(receiver: TraceReceiver) -> None:
    """A killed process can't flush: what has ended is on its way soon."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    tracer = create_tracer(names.SERVICE_KV, "kv-1", environment)
    span = tracer.start("root")
    span.end()

    assert receiver.wait_for_root(span.context.trace_id, 5)
    tracer.shutdown()


def test_refusing_collector_delays_no_exit_and_reaches_no_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{_free_port()}"}
    tracer = create_tracer(names.SERVICE_DECODE, "decode-1", environment)
    for _ in range(600):
        tracer.start("root").end()
    started = time.monotonic()

    assert not tracer.shutdown(0.5)
    assert time.monotonic() - started < 1.5
    num_lines = sum(record.name.startswith("opentelemetry") for record in caplog.records)
    assert num_lines <= 4


def test_silent_collector_delays_no_exit() -> None:
    """A collector that accepts and never answers is the slowest of all."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        program = (
            "import time\n"
            "from slipstream.shared.telemetry.tracing import create_tracer\n"
            "environment = {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:%d'}\n"
            "tracer = create_tracer('slipstream-kv', 'kv-1', environment)\n"
            "for _ in range(2000): tracer.start('root').end()\n"
            "started = time.monotonic()\n"
            "tracer.flush(0.3), tracer.shutdown(0.3)\n"
            "assert time.monotonic() - started < 1.5\n"
        )
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", program % port], capture_output=True, text=True, check=False
        )

    assert (0, "") == (done.returncode, done.stdout)
    assert time.monotonic() - started < 6


def test_flush_says_when_spans_were_not_delivered() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{_free_port()}",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2",
    }
    tracer = create_tracer(names.SERVICE_DECODE, "decode-1", environment)
    tracer.start("root").end()

    assert not tracer.flush(2)
    tracer.shutdown(0.5)


def test_spans_after_shutdown_are_lost_without_a_word(receiver: TraceReceiver) -> None:
    tracer = create_tracer(
        names.SERVICE_KV, "kv-1", {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    )
    tracer.shutdown()
    tracer.start("root").end()

    assert not receiver.trace_ids()
    assert tracer.shutdown()


@pytest.mark.skipif(
    importlib.util.find_spec("grpc") is not None, reason="the optional exporter is installed"
)
def test_grpc_without_its_exporter_names_the_extra() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }

    with pytest.raises(ConfigurationError, match=r"slipstream\[otlp-grpc\]"):
        create_tracer(names.SERVICE_KV, "kv-1", environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_TRACES_SAMPLER", "mostly"),
    ],
)
def test_a_setting_that_cannot_work_is_named(name: str, value: str) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", name: value}

    with pytest.raises(ConfigurationError, match=name):
        create_tracer(names.SERVICE_KV, "kv-1", environment)


def test_endpoint_for_traces_goes_before_the_base() -> None:
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://other:4318/custom"}

    assert traces_endpoint({}) is None
    assert "http://collector:4318/v1/traces" == traces_endpoint(base)
    assert "http://other:4318/custom" == traces_endpoint(base | own)


def test_batch_is_never_larger_than_the_queue() -> None:
    """The SDK refuses such a pair, and a small queue is a sensible thing to ask for."""
    settings = read_settings(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100",
            "OTEL_BSP_SCHEDULE_DELAY": "250",
        }
    )

    assert settings is not None
    assert (100, 100, 250) == (
        settings.max_queue_size,
        settings.max_batch_size,
        settings.schedule_delay_ms,
    )


async def test_another_receiver_understands_our_spans() -> None:
    try:
        import oteltap  # noqa: PLC0415 - it loads a native library that not every machine has
    except (ImportError, OSError) as error:
        pytest.skip(f"oteltap does not load here: {error}")
    port = _free_port()
    settings = oteltap.OtelTapHttpProtobufReceiverSettings(http_port=port)
    async with oteltap.OtelTapHttpProtobufReceiver(settings) as tap:
        arriving = asyncio.create_task(tap.await_trace(lambda span: span.name == "child", 10))
        await asyncio.sleep(0)
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        tracer = create_tracer(names.SERVICE_DRAFT, "draft-1", environment)
        parent = SpanContext("a" * 32, "b" * 16, is_sampled=True, trace_state="vendor=1")
        child = tracer.start("child", parent=parent, kind=SpanKind.CONSUMER)
        child.end()
        is_delivered = await asyncio.to_thread(tracer.shutdown)
        span = await arriving

    assert is_delivered
    assert (child.context.trace_id, child.context.span_id, parent.span_id) == (
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
    )
    assert "vendor=1" == span.trace_state


def test_the_exporter_is_quiet_about_a_collector_that_stays_away(
    receiver: TraceReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    create_tracer(names.SERVICE_KV, "kv-1", environment).shutdown()
    logger = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    for code in range(5):
        logger.error("Failed to export for the test, code: %s", code)

    assert len([record for record in caplog.records if record.name == logger.name]) <= 1


def test_a_proxy_does_not_stand_before_this_machine(
    receiver: TraceReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{_free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    tracer = create_tracer(names.SERVICE_KV, "kv-1", environment)
    tracer.start("root").end()

    assert tracer.shutdown()
    assert 1 == len(receiver.trace_ids())
