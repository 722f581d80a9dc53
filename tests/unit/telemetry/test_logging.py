"""Logs: one JSON object a line, whoever wrote it."""

import datetime as dt
import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.ids import RequestId
from slipstream.shared.telemetry import logging as our_logging
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.telemetry.logging import configure_logging, get_logger, request_fields
from slipstream.shared.telemetry.rate_limit import RateLimit


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return what a terminal does."""
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Put back what `configure_logging` changes for the whole process."""
    root, ours = logging.getLogger(), logging.getLogger("slipstream")
    levels = root.level, ours.level
    yield
    structlog.reset_defaults()
    root.handlers = [each for each in root.handlers if not isinstance(each, our_logging._Handler)]
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    configure_logging("slipstream-decode", "decode-1", stream=stream)
    return stream


@pytest.fixture
def lines(stream: io.StringIO) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_line_holds_origin_time_and_the_request(lines: Callable[[], list[dict[str, Any]]]) -> None:
    context = SpanContext("a" * 32, "b" * 16)
    log = get_logger().bind(**request_fields(RequestId("r1"), context))
    log.info("prefill_done", num_tokens=12, tail="two\nlines")

    [line] = lines()
    time = dt.datetime.fromisoformat(line.pop("timestamp"))
    assert dt.timedelta(0) == time.utcoffset()
    assert {
        "level": "info",
        "service": "slipstream-decode",
        "worker_id": "decode-1",
        "event": "prefill_done",
        "request_id": "r1",
        "trace_id": "a" * 32,
        "num_tokens": 12,
        "tail": "two\nlines",
    } == line


def test_libraries_write_the_same_lines(lines: Callable[[], list[dict[str, Any]]]) -> None:
    logging.getLogger("nats.aio.client").error("lost %s", "n1")
    logging.getLogger("opentelemetry.sdk").warning("queue full")
    logging.getLogger("asyncio").debug("Using selector")

    first, second = lines()
    assert ("lost n1", "nats.aio.client", "error", "slipstream-decode", "decode-1") == (
        first["event"],
        first["logger"],
        first["level"],
        first["service"],
        first["worker_id"],
    )
    assert "queue full" == second["event"]


def test_traceback_holds_no_local_variables(
    stream: io.StringIO, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Locals hold prompts."""

    def fail(prompt: str) -> None:
        raise ValueError(f"{len(prompt)} characters")

    for log in (get_logger().exception, logging.getLogger("nats").exception):
        try:
            fail("my secret")
        except ValueError:
            log("failed")

    assert "my secret" not in stream.getvalue().replace('fail("my secret")', "")
    for line in lines():
        assert "ValueError" == line["exception"][0]["exc_type"]
        assert "9 characters" == line["exception"][0]["exc_value"]


def test_console_traceback_holds_no_local_variables() -> None:
    stream = Terminal()
    configure_logging("slipstream-decode", stream=stream)
    prompt = f"my {'secret'}"
    try:
        int(prompt[:1])
    except ValueError:
        get_logger().exception("failed")

    assert "ValueError" in stream.getvalue()
    assert "my secret" not in stream.getvalue()


def test_terminal_gets_lines_for_people_unless_json_is_asked_for() -> None:
    for_people, for_machines = Terminal(), Terminal()
    configure_logging("slipstream-decode", stream=for_people)
    get_logger().info("ready")
    configure_logging("slipstream-decode", stream=for_machines, json=True)
    get_logger().info("ready")

    assert "{" not in for_people.getvalue()
    assert "ready" == json.loads(for_machines.getvalue())["event"]


def test_level_hides_what_is_below(stream: io.StringIO) -> None:
    get_logger().debug("hidden")
    configure_logging("slipstream-decode", stream=stream, level="error")
    get_logger().info("hidden")
    logging.getLogger("slipstream.shared").info("hidden")

    assert "" == stream.getvalue()


def test_level_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="LOUD"):
        configure_logging("slipstream-decode", level="LOUD")


def test_configuring_again_does_not_double_lines(
    stream: io.StringIO, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    configure_logging("slipstream-decode", stream=stream)
    get_logger().info("once")

    assert 1 == len(lines())


@pytest.mark.parametrize(
    "value", ["\ud800", {1: "a", (2, 3): "b"}, object(), float("nan"), b"\xff"]
)
def test_what_json_cannot_hold_loses_no_line(
    value: object, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    get_logger().info("odd", value=value)

    assert "odd" == lines()[0]["event"]


def test_same_message_passes_once_a_period_and_is_counted() -> None:
    limit = RateLimit(period_s=60)
    records = [
        logging.LogRecord("exporter", logging.ERROR, "", 0, "failed: %s", (n,), None)
        for n in range(3)
    ]

    assert [True, False, False] == [limit.filter(record) for record in records]

    limit._rarely._every_s = 0
    late = logging.LogRecord("exporter", logging.ERROR, "", 0, "failed: %s", (9,), None)

    assert limit.filter(late)
    assert "failed: 9 (2 more like this before)" == late.getMessage()
