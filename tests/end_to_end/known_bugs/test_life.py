"""Known bugs of clients that leave: queued, prefilling, decoding, many at once."""

import asyncio
import contextlib

import pytest

from tests.end_to_end import client, stack
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.timeout(180)]

_NUM_SEATS = 2
_ENDLESS = {"prompt": "Once", "max_tokens": 5000, "ignore_eos": True}
_HELLO = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
_GONE_S = 30.0  # five seconds of failed probes, and what a machine under load adds


@pytest.mark.parametrize("route", ["remote", pytest.param("local", marks=pytest.mark.slow)])
async def test_b57_a_stream_whose_client_hangs_up_is_given_up(
    narrow: client.Client, narrow_stack: stack.Stack, route: str
) -> None:
    """Long before its end, which is minutes away. Over HTTP a plain one too: the gateway's part."""
    async with client.connected(narrow_stack.nats_url) as leaving:
        async for message in leaving.messages({**_ENDLESS, "route": route}):
            if message["type"] == "token_frame":
                break

    await recipes.until(narrow, "decode", 0, _GONE_S)

    assert 4 == len(client.token_ids_of(await narrow.ask(_HELLO)))


async def test_b57_a_request_cancelled_while_queued_is_never_run(narrow: client.Client) -> None:
    async with contextlib.AsyncExitStack() as opened:
        blockers = [await _begin(opened, narrow) for _ in range(_NUM_SEATS)]
        found = client.Stream()

        async for message in narrow.messages({**_ENDLESS, "seed": 7}):
            found.messages.append(message)
            if message["type"] == "accepted":
                cancelled = await narrow.cancel(message["request_id"])

        assert "waiting" == cancelled["phase"]
        assert ["accepted", "failed"] == [each["type"] for each in found.messages]
        assert "cancelled" == found.ending["code"]
        for request_id in blockers:
            await narrow.cancel(request_id)
    await recipes.until(narrow, "decode", 0)


@pytest.mark.parametrize("route", ["remote", "local"])
async def test_b58_twenty_aborted_prefills_leave_nothing(
    chunked: client.Client, route: str
) -> None:
    """Prompts of 200 chunks, left after some; no token comes of them."""
    request = {"prompt": "p" * 3200, "max_tokens": 4, "ignore_eos": True, "route": route}
    holder = "prefill" if route == "remote" else "decode"

    for number in range(20):
        found = client.Stream()
        # With a salt of its own, or the blocks of those before would be found.
        salted = {**request, "cache_salt": f"{route} {number}"}
        async for message in chunked.messages(salted):
            found.messages.append(message)
            if message["type"] == "accepted":
                await recipes.until(chunked, holder, 1)
                await chunked.cancel(message["request_id"])

        ending = found.ending.get("finish_reason", found.ending.get("code"))
        assert ending in ("abort", "cancelled")
        assert [] == found.token_ids


async def test_s216_aborts_after_normal_ends_do_nothing(fake: client.Client) -> None:
    """A flood of them; each is told that there is nothing left to end."""
    streams = await asyncio.gather(*(fake.stream({**_HELLO, "seed": n}) for n in range(20)))
    ids = [each.ending["request_id"] for each in streams]
    # Until the worker's next report it counts as running.
    await recipes.until(fake, "decode", 0)

    answers = await asyncio.gather(*(fake.cancel(request_id) for request_id in ids * 5))

    assert {"ended"} == {answer["phase"] for answer in answers}
    assert {("finished", "length")} == {
        (each.ending["type"], each.ending["finish_reason"]) for each in streams
    }


async def test_b61_many_clients_leave_and_the_next_is_served(
    fake: client.Client, fake_stack: stack.Stack
) -> None:
    """More than there are seats, three times; half of them without a stream."""
    request = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True}
    for _ in range(3):
        async with client.connected(fake_stack.nats_url) as leaving:
            asks = [
                asyncio.create_task(
                    (leaving.stream if number % 2 else leaving.ask)({**request, "seed": number})
                )
                for number in range(60)
            ]
            await recipes.until(fake, "decode", 8)
            for each in asks:
                each.cancel()
            await asyncio.gather(*asks, return_exceptions=True)

    assert 4 == len(client.token_ids_of(await fake.ask(_HELLO, timeout_s=_GONE_S)))
    await recipes.until(fake, "decode", 0, client.ANSWER_S)


async def _begin(opened: contextlib.AsyncExitStack, asking: client.Client) -> str:
    """Have an endless stream running while the stack of contexts is open; return its id."""
    messages = asking.messages(_ENDLESS)
    await opened.enter_async_context(contextlib.aclosing(messages))
    accepted = await anext(messages)
    async for message in messages:
        if message["type"] == "token_frame":
            break
    request_id: str = accepted["request_id"]
    return request_id
