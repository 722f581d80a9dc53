"""Known bugs of overload: a full queue, deadlines, readers that don't read."""

import asyncio
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from slipstream.shared.bus.subjects import GENERATE
from tests.end_to_end import client, stack
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.timeout(180)]

_NUM_SEATS, _NUM_WAITING = 2, 8
_LONG = {"prompt": "Once", "max_tokens": 50, "ignore_eos": True}  # a second of it
_ENDLESS = {"prompt": "Once", "max_tokens": 5000, "ignore_eos": True}
_HELLO = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}


async def test_b81_what_finds_the_queue_full_is_refused_at_once(narrow: client.Client) -> None:
    order: list[client.Answer] = []

    async def ask(number: int) -> None:
        order.append(await narrow.ask({**_LONG, "seed": number}))

    await asyncio.gather(*(ask(number) for number in range(60)))

    refused = [answer for answer in order if answer["type"] == "failed"]
    served = [answer for answer in order if answer["type"] == "completion"]
    assert 60 == len(refused) + len(served)
    assert _NUM_WAITING <= len(served) <= _NUM_WAITING + 2 * _NUM_SEATS
    assert {"overloaded"} == {answer["code"] for answer in refused}
    assert all(answer["retry_after_ms"] > 0 for answer in refused)
    # At once: before anybody's second has passed.
    assert refused == order[: len(refused)]
    assert {50} == {len(client.token_ids_of(answer)) for answer in served}


async def test_b81_a_refused_stream_holds_one_message(narrow: client.Client) -> None:
    streams = await asyncio.gather(*(narrow.stream({**_LONG, "seed": n}) for n in range(30)))

    kinds = [[message["type"] for message in each.messages] for each in streams]
    refused = [each for each in kinds if "accepted" not in each]
    assert refused
    assert [["failed"]] * len(refused) == refused
    assert all(each[-1] == "finished" for each in kinds if "accepted" in each)


async def test_b83_a_deadline_ends_what_still_waits(narrow: client.Client) -> None:
    """
    Behind a minute of work; and it is not run when its turn comes.

    The door expects answers of a second, as the tests before asked for: it lets these in.
    """
    request = {**_LONG, "deadline_ms": 2000}
    blockers = [await _open(narrow, _ENDLESS) for _ in range(_NUM_SEATS)]
    began_s = time.monotonic()

    failed, found = await asyncio.gather(narrow.ask(request), narrow.stream(request))
    taken_s = time.monotonic() - began_s
    for request_id in blockers:
        await narrow.cancel(request_id)
    await recipes.until(narrow, "decode", 0)

    assert taken_s < 20
    assert ("failed", "deadline_exceeded") == (failed["type"], failed["code"]), failed["message"]
    assert ("accepted", []) == (found.messages[0]["type"], found.token_ids)
    assert ("failed", "deadline_exceeded") == (found.ending["type"], found.ending["code"])


@pytest.mark.parametrize("route", ["remote", "local"])
async def test_b83_a_deadline_ends_what_already_runs(narrow: client.Client, route: str) -> None:
    request = {**_ENDLESS, "deadline_ms": 1500, "route": route}

    found = await narrow.stream(request)

    assert found.frames, "it should have begun"
    assert "token_frame" == found.messages[-2]["type"]
    assert ("failed", "deadline_exceeded") == (found.ending["type"], found.ending["code"])
    await recipes.until(narrow, "decode", 0)


async def test_b83_a_reader_that_does_not_read_holds_nobody_up(
    narrow: client.Client, narrow_stack: stack.Stack
) -> None:
    with _deaf_client(narrow_stack.nats_url, {**_ENDLESS, "max_tokens": 400, "stream": True}):
        await recipes.until(narrow, "decode", 1)

        beside = await narrow.stream({**_LONG, "seed": 1})

        assert 50 == len(beside.token_ids)


async def _open(asking: client.Client, request: dict[str, Any]) -> str:
    """Begin a stream that nobody looks at further; return its id."""
    inbox = asking.connection.new_inbox()
    subscription = await asking.connection.subscribe(inbox)
    payload = client.encode({**request, "stream": True})
    await asking.connection.publish(GENERATE.subject(), payload, reply=inbox)
    request_id: str = client.decode((await subscription.next_msg(30)).data)["request_id"]
    return request_id


def _deaf_client(url: str, request: dict[str, Any]) -> socket.socket:
    """Return a connection that has asked for a stream and reads nothing of it."""
    where = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect((str(where.hostname), where.port))
    payload = json.dumps(request).encode()
    command = b'CONNECT {"verbose":false}\r\nSUB _INBOX.deaf.1 1\r\n'
    command += f"PUB {GENERATE.subject()} _INBOX.deaf.1 {len(payload)}\r\n".encode()
    connection.sendall(command + payload + b"\r\n")
    return connection
