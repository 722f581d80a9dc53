"""The endpoint answers GET /metrics, says what is wrong with all else, and waits for nobody."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.telemetry.metrics_endpoint import MAX_NUM_CONNECTIONS, MetricsEndpoint

BODY = b"slipstream_requests 1.0\n"
TYPE = "text/plain; version=0.0.4; charset=utf-8"
EXCHANGE_S = 0.3
GET = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """An endpoint and what it is asked."""

    def __init__(self) -> None:
        self.body: bytes | Exception = BODY
        self.endpoint: MetricsEndpoint | None = None

    async def open(
        self, host: str = "127.0.0.1", port: int = 0, exchange_s: float = EXCHANGE_S
    ) -> "Served":
        self.endpoint = await MetricsEndpoint.open(self._render, TYPE, host, port, exchange_s)
        return self

    async def close(self) -> None:
        assert self.endpoint is not None
        await self.endpoint.close()
        assert not self.endpoint._exchanges

    @property
    def port(self) -> int:
        assert self.endpoint is not None
        return int(self.endpoint.url.rpartition(":")[2].partition("/")[0])

    async def connect(self) -> Connection:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, question: bytes) -> bytes:
        reader, writer = await self.connect()
        writer.write(question)
        try:
            return await reader.read()
        finally:
            writer.close()

    def _render(self) -> bytes:
        if isinstance(self.body, Exception):
            raise self.body
        return self.body


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    found = await Served().open()
    yield found
    await found.close()


def num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


async def test_metrics_are_answered_with_their_length_and_type(served: Served) -> None:
    answer = await served.ask(GET)
    head, _, body = answer.partition(b"\r\n\r\n")

    assert 200 == status_of(answer)
    assert BODY == body
    assert f"Content-Length: {len(BODY)}".encode() in head.split(b"\r\n")
    assert f"Content-Type: {TYPE}".encode() in head.split(b"\r\n")
    assert b"Connection: close" in head.split(b"\r\n")


async def test_head_is_answered_like_get_without_the_body(served: Served) -> None:
    answer = await served.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")

    assert (200, b"") == (status_of(answer), body)
    assert f"Content-Length: {len(BODY)}".encode() in head.split(b"\r\n")


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metricsx HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"get /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"\xff\xfe /metrics HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),  # as TLS begins
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 8192 + b"\r\n\r\n", 431),
    ],
)
async def test_a_question_has_the_status_that_it_deserves(
    served: Served, question: bytes, status: int
) -> None:
    answer = await served.ask(question)

    assert status == status_of(answer)
    assert 200 == status_of(await served.ask(GET)), "the next one is served"


async def test_a_method_that_is_not_allowed_is_told_which_are(served: Served) -> None:
    assert b"\r\nAllow: GET, HEAD\r\n" in await served.ask(b"PUT /metrics HTTP/1.1\r\n\r\n")


async def test_a_client_that_says_nothing_is_hung_up_on(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(b"GET /met")
    async with asyncio.timeout(10 * EXCHANGE_S):
        said = await reader.read()
    writer.close()

    assert b"" == said


async def test_a_client_that_does_not_read_is_hung_up_on(served: Served) -> None:
    """More than the system keeps for a connection, or nobody would have to wait."""
    served.body = bytes(32 * 1024 * 1024)
    _, writer = await served.connect()
    writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport has it
    writer.write(GET)
    assert served.endpoint is not None
    async with asyncio.timeout(10 * EXCHANGE_S):
        while not served.endpoint._exchanges:
            await asyncio.sleep(0.01)
        while served.endpoint._exchanges:
            await asyncio.sleep(0.01)
    writer.transport.abort()


async def test_slow_clients_do_not_keep_another_waiting(served: Served) -> None:
    slow = [await served.connect() for _ in range(MAX_NUM_CONNECTIONS - 1)]
    async with asyncio.timeout(EXCHANGE_S):
        answer = await served.ask(GET)
    for _, writer in slow:
        writer.close()

    assert 200 == status_of(answer)


async def test_more_connections_than_there_is_room_for_are_refused() -> None:
    served = await Served().open(exchange_s=60.0)  # nobody's time is up before all are there
    slow = [await served.connect() for _ in range(MAX_NUM_CONNECTIONS)]
    refused = await served.ask(b"")
    for _, writer in slow:
        writer.close()
    while served.endpoint is not None and served.endpoint._exchanges:
        await asyncio.sleep(0.01)

    assert 503 == status_of(refused)
    assert 200 == status_of(await served.ask(GET)), "there is room again"
    await served.close()


async def test_silent_clients_make_room_when_their_time_is_up(served: Served) -> None:
    silent = [await served.connect() for _ in range(MAX_NUM_CONNECTIONS)]
    await asyncio.gather(*(reader.read() for reader, _ in silent))
    for _, writer in silent:
        writer.close()

    assert 200 == status_of(await served.ask(GET))


async def test_many_clients_are_answered_and_nothing_is_left_of_them(served: Served) -> None:
    await served.ask(GET)
    num_open = num_descriptors()
    for _ in range(20):
        answers = await asyncio.gather(*(served.ask(GET) for _ in range(MAX_NUM_CONNECTIONS // 2)))
        assert {200} == {status_of(answer) for answer in answers}
    await asyncio.sleep(0.05)
    gc.collect()

    assert num_descriptors() <= num_open + 1


async def test_a_client_that_hangs_up_is_forgotten(served: Served) -> None:
    _, writer = await served.connect()
    writer.transport.abort()

    assert 200 == status_of(await served.ask(GET))


async def test_metrics_that_can_not_be_read_are_an_error_of_the_server(served: Served) -> None:
    served.body = RuntimeError("boom")
    with capture_logs() as logs:
        answer = await served.ask(GET)

    assert 500 == status_of(answer)
    assert b"boom" not in answer
    assert ["metrics_failed"] == [each["event"] for each in logs]


async def test_closing_hangs_up_on_who_is_there() -> None:
    served = await Served().open()
    assert served.endpoint is not None
    reader, writer = await served.connect()
    await served.ask(GET)
    async with asyncio.timeout(EXCHANGE_S / 2):
        await served.endpoint.close()
    said = await reader.read()
    writer.close()

    assert b"" == said
    with pytest.raises(OSError, match="onnect"):
        await served.connect()


async def test_a_port_that_is_taken_is_said_by_its_option(served: Served) -> None:
    with pytest.raises(ConfigurationError, match=f"--metrics-port {served.port} on 127.0.0.1 is"):
        await Served().open(port=served.port)


async def test_an_address_that_is_not_ours_is_said_by_its_option() -> None:
    with pytest.raises(ConfigurationError, match="--metrics-host"):
        await Served().open(host="192.0.2.1")
