"""Known bugs of HTTP clients that leave: streamed, plain, queued, many; and none that stayed."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.msg import Msg

from slipstream.shared.bus.subjects import CANCEL
from tests.end_to_end import client, http_client, stack
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_NUM_SEATS = 2
_GONE_S = 10.0  # ten times what is promised
_ENDLESS = {"prompt": "Once", "max_tokens": 5000, "ignore_eos": True}
_HELLO = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}


@pytest.mark.parametrize("route", ["remote", "local"])
@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "plain"])
async def test_b57_a_client_that_hangs_up_ends_its_request(
    lean_http: http_client.HttpClient,
    lean: client.Client,
    lean_stack: stack.Stack,
    route: str,
    *,
    is_streamed: bool,
) -> None:
    """Long before its end; nothing of it is left, and the next one is served as ever."""
    leaving = asyncio.create_task(_ask(lean_stack, {**_ENDLESS, "route": route}, is_streamed))
    await recipes.until(lean, "decode", 1)

    leaving.cancel()
    began_s = time.monotonic()
    await asyncio.wait({leaving})
    await recipes.until(lean, "decode", 0, _GONE_S)

    assert time.monotonic() - began_s < _GONE_S
    assert 200 == (await lean_http.complete(_HELLO)).status


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "plain"])
async def test_b57_a_client_that_hangs_up_while_queued_is_never_served(
    lean_http: http_client.HttpClient,
    lean: client.Client,
    lean_stack: stack.Stack,
    *,
    is_streamed: bool,
) -> None:
    mine = f"queued-{is_streamed}-{time.monotonic_ns()}"
    async with contextlib.AsyncExitStack() as opened:
        for seed in range(_NUM_SEATS):
            await opened.enter_async_context(_running(lean_http, {**_ENDLESS, "seed": seed}))
        body = {**_ENDLESS, "client_request_id": mine}
        leaving = asyncio.create_task(_ask(lean_stack, body, is_streamed))
        await _until_logged(lean_stack, mine, "request_admitted")

        leaving.cancel()
        await asyncio.wait({leaving})
        ended = await _until_logged(lean_stack, mine, "request_ended")

    assert "cancelled" in str(ended)
    await recipes.until(lean, "decode", 0, _GONE_S)


@pytest.mark.slow
async def test_b61_many_clients_leave_and_the_next_is_served(
    roomy_http: http_client.HttpClient, roomy: client.Client, roomy_stack: stack.Stack
) -> None:
    """Twice as many as there are seats, three times; half of them without a stream."""
    request = {"prompt": "Once", "max_tokens": 1000, "ignore_eos": True}
    for _ in range(3):
        asks = [
            asyncio.create_task(_ask(roomy_stack, {**request, "seed": number}, bool(number % 2)))
            for number in range(64)
        ]
        await recipes.until(roomy, "decode", 8)
        for each in asks:
            each.cancel()
        await asyncio.wait(asks)

    assert 200 == (await roomy_http.complete(_HELLO)).status
    await recipes.until(roomy, "decode", 0, _GONE_S)


async def test_s216_a_client_that_closes_after_its_answer_cancels_nothing(
    lean_http: http_client.HttpClient, lean: client.Client, lean_stack: stack.Stack
) -> None:
    """No flood of aborts behind answers that ended by themselves."""
    cancels: list[Msg] = []

    async def note(message: Msg) -> None:
        cancels.append(message)

    subscription = await lean.connection.subscribe(CANCEL.wildcard, cb=note)
    await lean.connection.flush()

    for number in range(12):
        await _ask(lean_stack, {**_HELLO, "seed": number}, is_streamed=bool(number % 2))
    # It comes after all that the gateway had to say of those before it.
    await lean_http.complete(_HELLO)
    await lean.connection.flush()
    await subscription.unsubscribe()

    assert [] == cancels


async def _ask(running: stack.Stack, body: dict[str, Any], is_streamed: bool) -> None:
    """Have an answer to its end, over a connection that is closed then, or when cancelled."""
    async with http_client.connected(http_client.url_of(running)) as leaving:
        if is_streamed:
            found = await leaving.stream(http_client.TEXT, body)
            assert found.is_done
        else:
            assert (await leaving.complete(body)).status in (200, 429)


@contextlib.asynccontextmanager
async def _running(asking: http_client.HttpClient, body: dict[str, Any]) -> AsyncIterator[None]:
    """Have a stream past its first words while a block runs."""
    async with asking.streaming(http_client.TEXT, body) as chunks:
        await anext(chunks)
        yield


async def _until_logged(running: stack.Stack, mine: str, event: str) -> stack.LogLine:
    def lines() -> list[stack.LogLine]:
        return [
            line
            for line in list(running.log)
            if line.get("client_request_id") == mine and line["event"] == event
        ]

    assert await asyncio.to_thread(stack.wait_until, lambda: bool(lines()), 20), event
    return lines()[0]
