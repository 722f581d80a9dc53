"""Whatever happens to requests, every KV block comes back."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from . import client, conftest, stack

pytestmark = [pytest.mark.nats, pytest.mark.timeout(180)]

_NUM_AT_A_TIME = 24
_FAKE = ["--test-mode", "--engine", "fake"]

Kind = Callable[[client.Client, dict[str, Any], random.Random], Awaitable[str]]


@pytest.mark.slow
async def test_two_hundred_mixed_requests_leave_no_block_leased(
    start_stack: conftest.StartStack,
) -> None:
    """On a cache so small that requests wait for blocks and push one another out."""
    arguments = [*_FAKE, "--prefill", "2", "--decode", "2", "--kv-memory", "40KiB"]
    running = start_stack(arguments, {"SLIPSTREAM_FAKE_STEP_MS": "4"})

    outcomes = await _serve_mixed(running, 200, max_num_prompt_tokens=300, max_num_tokens=300)

    async with client.connected(running.nats_url) as asking:
        books = await asking.idle_audit()
        answer = await asking.ask({"prompt": "Hello", "max_tokens": 4})
    _check_books(books)
    assert 80 == books["num_blocks"]
    assert 4 == len(client.token_ids_of(answer))
    _check_outcomes(outcomes, 200)
    assert any(line["event"] == "preempted" for line in running.log), "the cache was never short"
    assert 0 == running.stop()


@pytest.mark.slow
@pytest.mark.model
async def test_forty_mixed_requests_on_the_real_model_leave_no_block_leased(
    real_stack: stack.Stack, real_client: client.Client
) -> None:
    outcomes = await _serve_mixed(real_stack, 40, max_num_prompt_tokens=80, max_num_tokens=24)

    books = await real_client.idle_audit()
    _check_books(books)
    _check_outcomes(outcomes, 40)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_two_hundred_mixed_requests_on_the_real_model_leave_no_block_leased(
    real_stack: stack.Stack, real_client: client.Client
) -> None:
    outcomes = await _serve_mixed(real_stack, 200, max_num_prompt_tokens=400, max_num_tokens=48)

    books = await real_client.idle_audit()
    _check_books(books)
    _check_outcomes(outcomes, 200)


def _check_books(books: client.Answer) -> None:
    """All blocks are free or cached; idle workers hold none ahead of need either."""
    assert [] == books.get("problems", [])
    assert [] == books.get("leases", [])
    held = {
        name: books[f"num_{name}"] for name in ("granted", "leased", "committed", "quarantined")
    }
    assert dict.fromkeys(held, 0) == held
    assert books["num_blocks"] == books["num_free"] + books["num_cached"]


def _check_outcomes(outcomes: Counter[str], num_requests: int) -> None:
    assert num_requests == outcomes.total()
    expected = {"finished", "cancelled", "refused", "late", "gone"}
    assert expected == set(outcomes), outcomes
    assert outcomes["finished"] > num_requests / 4


async def _serve_mixed(
    running: stack.Stack, num_requests: int, max_num_prompt_tokens: int, max_num_tokens: int
) -> "Counter[str]":
    """Send requests of every fate, many at a time; return how many met which."""
    choices = random.Random(7)
    limit = asyncio.Semaphore(_NUM_AT_A_TIME)
    kinds: list[Kind] = [_plain, _streamed, _cancelled, _cancelled, _refused, _late, _gone]

    async def serve(number: int) -> str:
        request = {
            "prompt": "word " * choices.randint(1, max_num_prompt_tokens // 5),
            "max_tokens": choices.randint(1, max_num_tokens),
            "route": choices.choice(["remote", "local", "auto"]),
            "seed": number,
            "ignore_eos": True,
        }
        async with limit:
            kind = kinds[number % len(kinds)]
            return await kind(asking, request, random.Random(number))

    async with client.connected(running.nats_url) as asking:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(serve(number)) for number in range(num_requests)]
        return Counter(task.result() for task in tasks)


async def _plain(asking: client.Client, request: dict[str, Any], _: random.Random) -> str:
    answer = await asking.ask(request)
    assert request["max_tokens"] == len(client.token_ids_of(answer))
    return "finished"


async def _streamed(asking: client.Client, request: dict[str, Any], _: random.Random) -> str:
    found = await asking.stream(request)
    assert ("finished", "length") == (found.ending["type"], found.ending["finish_reason"])
    assert request["max_tokens"] == len(found.token_ids)
    return "finished"


async def _cancelled(asking: client.Client, request: dict[str, Any], choices: random.Random) -> str:
    """Cancel at any moment: waiting, prefilling, between the two, decoding, just ended."""
    delay_s = choices.choice([0, 0.001, 0.01, 0.1, 0.3])
    sent = []
    async for message in asking.messages({**request, "max_tokens": 160}):
        if "accepted" == message["type"]:
            sent.append(asyncio.create_task(_cancel_later(asking, message["request_id"], delay_s)))
        last = message
    await asyncio.gather(*sent)
    ended = last.get("finish_reason", last.get("code"))
    assert ended in ("abort", "cancelled", "length"), last
    return "cancelled" if ended != "length" else "finished"


async def _cancel_later(asking: client.Client, request_id: str, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    await asking.cancel(request_id)


async def _refused(asking: client.Client, request: dict[str, Any], choices: random.Random) -> str:
    wrong = choices.choice([{"max_tokens": 0}, {"temperature": 9}, {"model": "other"}])
    failed = await asking.ask({**request, **wrong})
    assert "failed" == failed["type"], failed
    return "refused"


async def _late(asking: client.Client, request: dict[str, Any], choices: random.Random) -> str:
    """Ask for more than the time allows: told at the door where that can be seen."""
    deadline_ms = choices.choice([1, 10, 50])
    answer = await asking.ask({**request, "max_tokens": 160, "deadline_ms": deadline_ms})
    assert "failed" == answer["type"], answer
    assert answer["code"] in ("deadline_exceeded", "overloaded"), answer
    return "late"


async def _gone(asking: client.Client, request: dict[str, Any], choices: random.Random) -> str:
    """Hang up in the middle, with or without a stream."""
    url = asking.connection.connected_url
    assert url is not None, "it is connected"
    send = choices.choice([client.Client.stream, client.Client.ask])
    async with client.connected(url.geturl()) as other:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(choices.choice([0.01, 0.1, 0.4])):
                await send(other, {**request, "max_tokens": 160})
    return "gone"
