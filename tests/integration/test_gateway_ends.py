"""How HTTP requests end early: clients that hang up, stall or are too many, and our own end."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from slipstream.services.scheduler.desk import Desk
from slipstream.shared.config import FakeEngineConfig

from .http_client import HttpClient, chat_body, data_of
from .service_stack import OVER_HTTP, ServiceStack, is_idle, until, until_empty

pytestmark = pytest.mark.nats

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_FREE_S = 1.0  # so long may blocks be held after a client has gone
_SLOW = {"step_ms": 20.0, "row_us": 0.0, "context_token_ns": 0.0}

Serve = Callable[..., Awaitable[tuple[ServiceStack, HttpClient]]]


@pytest.fixture
async def serve(start: Any) -> AsyncIterator[Serve]:
    """A function that starts a stack with a gateway, and a client of it."""
    clients = []

    async def make(**settings: Any) -> tuple[ServiceStack, HttpClient]:
        stack = await start(*OVER_HTTP, **settings)
        clients.append(HttpClient(stack.one("gateway").http_url))
        return stack, clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.mark.parametrize("streamed", [False, True])
async def test_who_hangs_up_while_it_is_decoded_frees_its_blocks(
    serve: Serve, fake_slow: Any, *, streamed: bool
) -> None:
    stack, http = await serve(every={"fake": fake_slow})
    body = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": streamed}

    async with http.raw(TEXT, body) as request:
        await until(lambda: _phases(stack.desk) == ["decoding"])
        if streamed:
            await request.first_chunk()
        request.hang_up()
        await _is_freed(stack)


@pytest.mark.parametrize("streamed", [False, True])
async def test_who_hangs_up_while_it_is_prefilled_frees_its_blocks(
    serve: Serve, fake_slow: Any, *, streamed: bool
) -> None:
    """A prompt of many chunks: it takes seconds to compute."""
    stack, http = await serve(
        every={"fake": fake_slow}, prefill={"token_budget": 16}, scheduler={"route": "remote"}
    )
    body = {"prompt": "word " * 700, "max_tokens": 4, "stream": streamed}

    async with http.raw(TEXT, body) as request:
        await until(lambda: _phases(stack.desk) == ["prefilling"])
        request.hang_up()
        await _is_freed(stack)


@pytest.mark.parametrize("streamed", [False, True])
async def test_who_hangs_up_while_it_waits_is_not_served(
    serve: Serve, fake_slow: Any, *, streamed: bool
) -> None:
    stack, http = await serve(
        every={"fake": fake_slow}, decode={"num_seats": 1}, scheduler={"num_reserved_seats": 0}
    )
    long = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": True}

    async with http.raw(TEXT, long) as running:
        await running.first_chunk()
        async with http.raw(TEXT, {**long, "stream": streamed}) as waiting:
            await until(lambda: sorted(_phases(stack.desk)) == ["decoding", "waiting"])
            waiting.hang_up()
            await until(lambda: _phases(stack.desk) == ["decoding"], _FREE_S)
        running.hang_up()
        await _is_freed(stack)


async def test_who_hangs_up_before_the_scheduler_has_answered_is_cancelled_too(
    serve: Serve, fake_slow: Any
) -> None:
    """The request has no name yet by which it could be cancelled: its acceptance is waited for."""
    stack, http = await serve(every={"fake": fake_slow})
    body = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True}
    for delay_s in (0.0, 0.001, 0.002, 0.004, 0.008):
        async with http.raw(TEXT, body) as request:
            await request.writer.drain()
            await asyncio.sleep(delay_s)
            request.hang_up()
    await until(lambda: stack.one("gateway")._gateway.num_running == 0)

    await _is_freed(stack, 2 * _FREE_S)


async def test_all_choices_of_all_prompts_are_cancelled(serve: Serve, fake_slow: Any) -> None:
    stack, http = await serve(every={"fake": fake_slow})
    body = {"prompt": ["Hello", "Wind"], "n": 3, "max_tokens": 900, "ignore_eos": True}

    async with http.raw(TEXT, body) as request:
        await until(lambda: len(stack.desk.records) == 6)
        request.hang_up()
        await _is_freed(stack)


async def test_two_hundred_clients_that_leave_leave_nothing(serve: Serve) -> None:
    stack, http = await serve()
    body = {"prompt": "Hello", "max_tokens": 300, "ignore_eos": True, "stream": True}

    async def leave() -> None:
        async with http.raw(TEXT, body) as request:
            await request.until(b"HTTP/1.1")
            request.hang_up()

    await asyncio.gather(*(leave() for _ in range(200)))

    await until_empty(stack)
    assert (
        200 == (await http.complete(max_tokens=200, ignore_eos=True))["usage"]["completion_tokens"]
    )
    assert not stack.one("gateway")._gateway.room._boxes


@pytest.mark.parametrize("has_httptools", [True, False])
async def test_a_reader_that_stops_is_cut_off_and_others_are_not_slowed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, *, has_httptools: bool
) -> None:
    """What it has not read stays bounded; its request is cancelled."""
    if not has_httptools:
        monkeypatch.setattr("slipstream.services.gateway.http_server.find_spec", lambda _name: None)
    stack, http = await serve(
        gateway={"stall_timeout_s": 0.5, "stream_buffer_bytes": 2048},
        every={"fake": _cost(step_ms=0.2)},
    )
    gateway = stack.one("gateway")._gateway
    long = {"prompt": "Hello", "max_tokens": 7000, "ignore_eos": True, "stream": True}

    async with http.raw(TEXT, {**long, "logprobs": 5}, 4096) as stalled:
        await until(lambda: gateway.num_running == 1)
        stalled.pause()
        began = time.monotonic()
        await http.complete("Wind", max_tokens=50)
        assert time.monotonic() - began < _FREE_S
        await until(lambda: gateway.num_running == 0)
    await until_empty(stack)
    assert 0 == gateway.num_running


@pytest.mark.slow
async def test_a_slow_reader_gets_all_of_its_text_in_fewer_chunks(serve: Serve) -> None:
    """Frames that found no room are asked for again; nothing is lost and nothing comes twice."""
    stack, http = await serve(gateway={"stream_buffer_bytes": 1024})
    gateway = stack.one("gateway")._gateway
    body = {"prompt": "Hello", "max_tokens": 4000, "ignore_eos": True, "temperature": 0}
    plain = (await http.post(TEXT, body)).json()

    async with http.raw(TEXT, {**body, "stream": True}, 4096) as slow:
        slow.pause()
        await until(lambda: gateway.room.num_dropped_frames > 0)
        slow.resume()
        text = (await slow.until(b"0\r\n\r\n")).decode()

    events = data_of(_unchunked(text))
    chunks = [json.loads(event) for event in events[:-1]]
    assert "[DONE]" == events[-1]
    assert plain["choices"][0]["text"] == "".join(each["choices"][0]["text"] for each in chunks)
    assert len(chunks) < 4000


async def test_a_drain_lets_streams_finish_and_takes_no_more(serve: Serve, fake_slow: Any) -> None:
    stack, http = await serve(every={"fake": fake_slow}, gateway={"drain_s": 5.0})
    body = {"prompt": "Hello", "max_tokens": 40, "ignore_eos": True, "stream": True}
    service = stack.one("gateway")
    await http.get("/health")  # a connection that is kept

    async with http.raw(TEXT, body) as request:
        await request.first_chunk()
        stopping = asyncio.create_task(service.stop())
        await asyncio.sleep(0.1)
        with pytest.raises(OSError):  # noqa: PT011 - refused, or reset
            await asyncio.open_connection("127.0.0.1", int(http.url.rpartition(":")[2]))
        late = await http.post(TEXT, body)
        ready = await http.get("/ready")
        rest = await request.rest()
        await stopping

    assert (503, "draining") == (late.status_code, late.json()["error"]["code"])
    assert 503 == ready.status_code
    assert b"data: [DONE]" in rest
    assert b'"error"' not in rest


async def test_a_stream_that_outlasts_the_drain_is_told_so(serve: Serve, fake_slow: Any) -> None:
    stack, http = await serve(every={"fake": fake_slow}, gateway={"drain_s": 0.2})
    body = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": True}

    async with http.raw(TEXT, body) as request:
        await request.first_chunk()
        await stack.one("gateway").stop()
        rest = (await request.rest()).decode()

    *_, error, done = data_of(_unchunked(rest))
    assert ("draining", "[DONE]") == (json.loads(error)["error"]["code"], done)
    await _is_freed(stack)


async def test_without_a_scheduler_it_is_503_and_not_ready(start: Any) -> None:
    stack = await start("kv", "gateway")
    http = HttpClient(stack.one("gateway").http_url)

    answer = await http.post(CHAT, chat_body())
    ready, health = await http.get("/ready"), await http.get("/health")
    await http.close()

    assert (503, "no_responders") == (answer.status_code, answer.json()["error"]["code"])
    assert "1" == answer.headers["retry-after"]
    assert (503, False, 200) == (ready.status_code, ready.json()["is_ready"], health.status_code)


@pytest.mark.slow
async def test_a_full_queue_is_429_with_a_time_to_try_again(serve: Serve, fake_slow: Any) -> None:
    _stack, http = await serve(
        every={"fake": fake_slow},
        scheduler={"max_num_waiting": 2, "num_reserved_seats": 0},
        decode={"num_seats": 1},
    )
    body = {"prompt": "Hello", "max_tokens": 200, "ignore_eos": True}

    answers = await asyncio.gather(*(http.post(TEXT, body) for _ in range(8)))

    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) >= 4
    for answer in refused:
        error = answer.json()["error"]
        assert ("overloaded", "rate_limit_error") == (error["code"], error["type"])
        assert int(answer.headers["retry-after"]) >= 1
        assert int(answer.headers["retry-after-ms"]) > 0
    assert all(answer.status_code in (200, 429) for answer in answers)


async def test_one_request_too_many_at_once_is_429(serve: Serve, fake_slow: Any) -> None:
    _stack, http = await serve(every={"fake": fake_slow}, gateway={"max_num_streams": 1})
    body = {"prompt": "Hello", "max_tokens": 500, "ignore_eos": True, "stream": True}

    async with http.raw(TEXT, body) as request:
        await request.first_chunk()
        answer = await http.post(TEXT, body)

    assert (429, "overloaded") == (answer.status_code, answer.json()["error"]["code"])
    assert "1" == answer.headers["retry-after"]


async def test_a_stream_that_waits_long_shows_that_it_lives(
    serve: Serve, fake_slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By comments, which clients pass over; its first event still has the first words."""
    monkeypatch.setattr("slipstream.services.gateway.generation._QUIET_S", 0.2)
    stack, http = await serve(
        every={"fake": fake_slow}, decode={"num_seats": 1}, scheduler={"num_reserved_seats": 0}
    )
    long = {"prompt": "Hello", "max_tokens": 120, "ignore_eos": True, "stream": True}

    async with http.raw(TEXT, long) as running:
        await running.first_chunk()
        async with http.raw(CHAT, chat_body(max_tokens=2, stream=True)) as waiting:
            head = await waiting.until(b": keep-alive\n\n")
            assert "waiting" in _phases(stack.desk)
            rest = (await waiting.until(b"[DONE]\n\n")).decode()

    assert b"HTTP/1.1 200 OK" in head
    first, *_, done = data_of(_unchunked(rest))
    assert "assistant" == json.loads(first)["choices"][0]["delta"]["role"]
    assert "[DONE]" == done


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_deadline_that_passes_is_504(
    serve: Serve, fake_slow: Any, *, streamed: bool
) -> None:
    """In a stream that has begun it is an error among its events."""
    stack, http = await serve(every={"fake": fake_slow})
    body = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "deadline_ms": 400}

    answer = await http.post(TEXT, {**body, "stream": streamed})

    if streamed:
        *_, error, done = data_of(answer.text)
        assert (200, "[DONE]") == (answer.status_code, done)
        assert "deadline_exceeded" == json.loads(error)["error"]["code"]
    else:
        assert 504 == answer.status_code, answer.text
        assert "server_error" == answer.json()["error"]["type"]
    await until_empty(stack)


async def test_a_body_over_the_limit_is_413(serve: Serve) -> None:
    _stack, http = await serve(gateway={"max_body_bytes": 4096})
    large = await http.post(TEXT, {"prompt": "x" * 5000})

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * 1000

    unannounced = await http.http.post(TEXT, content=pieces())

    assert [413, 413] == [large.status_code, unannounced.status_code]
    assert "4096" in large.json()["error"]["message"]


async def test_what_the_scheduler_finds_too_large_is_413_too(serve: Serve) -> None:
    _stack, http = await serve(scheduler={"max_request_bytes": 2000})

    answer = await http.post(TEXT, {"prompt": "x" * 5000})

    assert (413, "message_too_large") == (answer.status_code, answer.json()["error"]["code"])


async def test_a_body_that_does_not_come_is_408(serve: Serve) -> None:
    _stack, http = await serve(gateway={"body_timeout_s": 0.2})
    host, _, port = http.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")

    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 408")


async def test_keys_are_asked_for_and_name_the_tenant(serve: Serve) -> None:
    stack, http = await serve(gateway={"api_key_list": "sk-one acme,sk-two"})
    seen = []
    stack.desk.on_closed = lambda record, _code: seen.append(record.request.tenant)
    body = {"prompt": "Hello", "max_tokens": 1, "tenant": "somebody-else"}

    missing = await http.post(TEXT, body)
    wrong = await http.post(TEXT, body, authorization="Bearer sk-on")
    right = await http.post(TEXT, body, authorization="Bearer sk-one")
    models = [
        (await http.get("/v1/models", **headers)).status_code
        for headers in ({}, {"authorization": "Bearer sk-two"})
    ]

    assert [401, 401, 200] == [each.status_code for each in (missing, wrong, right)]
    assert "invalid_api_key" == wrong.json()["error"]["code"]
    assert ([401, 200], 200) == (models, (await http.get("/health")).status_code)
    await until(lambda: seen)
    assert ["acme"] == seen


@pytest.fixture
def fake_slow() -> Any:
    """An engine whose steps take long enough to be met in the middle."""
    return _cost(**_SLOW)


def _cost(**costs: float) -> Any:
    return FakeEngineConfig(**{"row_us": 0.0, "context_token_ns": 0.0, **costs})


def _phases(desk: Desk) -> list[str]:
    return [record.phase for record in desk.records.values()]


def _unchunked(text: str) -> str:
    """Return the events of a chunked body, or of what is left of one."""
    lines = text.split("\r\n")
    return "".join(line for line in lines if line.startswith(("data: ", ":")))


async def _is_freed(stack: ServiceStack, within_s: float = _FREE_S) -> None:
    """Check that nobody holds a block a second from now."""
    began = time.monotonic()
    await until(lambda: not stack.desk.records, within_s)
    while not is_idle(await stack.audit()):
        assert time.monotonic() - began < within_s, "blocks are still held"
        await asyncio.sleep(0.01)
    assert time.monotonic() - began < within_s
