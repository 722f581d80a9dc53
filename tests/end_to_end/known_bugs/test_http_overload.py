"""Known bugs of overload over HTTP: a full queue, deadlines, a reader that takes nothing."""

import asyncio
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.end_to_end import client, http_client, stack
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_NUM_SEATS, _NUM_WAITING = 2, 8
_LONG = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True}
_ENDLESS = {"prompt": "Once", "max_tokens": 5000, "ignore_eos": True}


async def test_b81_what_finds_the_queue_full_is_told_to_come_back(
    lean_http: http_client.HttpClient,
) -> None:
    order: list[http_client.Reply] = []

    async def ask(number: int) -> None:
        order.append(await lean_http.complete({**_LONG, "seed": number}))

    await asyncio.gather(*(ask(number) for number in range(60)))

    refused = [each for each in order if each.status == 429]
    served = [each for each in order if each.status == 200]
    assert 60 == len(refused) + len(served), [each.status for each in order]
    assert _NUM_WAITING <= len(served) <= _NUM_WAITING + 2 * _NUM_SEATS
    for each in refused:
        assert ("overloaded", "rate_limit_error") == (each.error["code"], each.error["type"])
        assert 1 <= int(each.headers["retry-after"])
        assert 1 <= int(each.headers["retry-after-ms"])
    # At once: before anybody was served.
    assert refused == order[: len(refused)]
    assert {100} == {each.body["usage"]["completion_tokens"] for each in served}


async def test_b81_a_stream_that_finds_it_full_is_refused_before_it_begins(
    lean_http: http_client.HttpClient,
) -> None:
    streams = await asyncio.gather(
        *(lean_http.stream(http_client.TEXT, {**_LONG, "seed": number}) for number in range(30))
    )

    refused = [each for each in streams if each.status == 429]
    assert refused
    assert ["overloaded"] * len(refused) == [each.chunks[0]["error"]["code"] for each in refused]
    assert all(each.is_done and each.endings for each in streams if each.status == 200)


async def test_b81_choices_count_each(lean_http: http_client.HttpClient) -> None:
    refused = await lean_http.complete({**_LONG, "n": 16})

    assert (429, "overloaded") == (refused.status, refused.error["code"])


async def test_b83_a_deadline_ends_what_still_waits_with_a_504(
    lean_http: http_client.HttpClient, lean: client.Client
) -> None:
    async with (
        lean_http.streaming(http_client.TEXT, {**_ENDLESS, "seed": 1}) as first,
        lean_http.streaming(http_client.TEXT, {**_ENDLESS, "seed": 2}) as second,
    ):
        await asyncio.gather(anext(first), anext(second))
        began_s = time.monotonic()

        plain = await lean_http.complete({**_LONG, "deadline_ms": 500})
        found = await lean_http.stream(http_client.TEXT, {**_LONG, "deadline_ms": 500})

        assert time.monotonic() - began_s < 10
    assert (504, "deadline_exceeded") == (plain.status, plain.error["code"])
    assert 504 == found.status, "the same before it has begun"
    await recipes.until(lean, "decode", 0)


async def test_b83_a_deadline_in_a_stream_is_told_in_the_stream(
    lean_http: http_client.HttpClient, lean: client.Client
) -> None:
    plain = await lean_http.complete({**_ENDLESS, "deadline_ms": 1500})
    found = await lean_http.stream(http_client.TEXT, {**_ENDLESS, "deadline_ms": 1500})

    assert (504, "deadline_exceeded") == (plain.status, plain.error["code"])
    assert 200 == found.status
    assert found.text, "it should have begun"
    assert found.error is not None
    assert "deadline_exceeded" == found.error["code"]
    assert "error" in found.chunks[-1]
    assert found.is_done
    assert [] == found.endings
    await recipes.until(lean, "decode", 0)


async def test_b83_a_reader_that_takes_nothing_holds_nobody_up_and_is_given_up(
    lean_http: http_client.HttpClient, lean: client.Client, lean_stack: stack.Stack
) -> None:
    # Large events, so that the buffers between us are soon full.
    body = {**_ENDLESS, "logprobs": 20, "stream": True}
    with _deaf_client(http_client.url_of(lean_stack), body) as deaf:
        await recipes.until(lean, "decode", 1)

        beside = await lean_http.stream(http_client.TEXT, {**_LONG, "seed": 1})
        await recipes.until(lean, "decode", 0, 60.0)

        assert beside.is_done
        assert "length" == beside.endings[0]["finish_reason"]
        # The connection is cut, not ended.
        with pytest.raises(ConnectionResetError):
            _read_all(deaf)


def _deaf_client(url: str, body: dict[str, Any]) -> socket.socket:
    """Return a connection that has asked for a stream and reads nothing of it."""
    where = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(30)
    connection.connect((str(where.hostname), where.port))
    payload = json.dumps(body).encode()
    head = f"POST {http_client.TEXT} HTTP/1.1\r\nHost: {where.netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    connection.sendall(head.encode() + payload)
    return connection


def _read_all(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass
