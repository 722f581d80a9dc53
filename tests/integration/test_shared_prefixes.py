"""Requests that begin alike at the same time compute what they share once; so do choices of one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.generate import Completion
from slipstream.shared.model.tokenizer import Tokenizer

from .service_stack import Client, ServiceStack, oracle, until, until_empty

pytestmark = pytest.mark.nats

SIZE = 32
SHARED = "Ride behind me and rest a little while you can, the wind is strong today. " * 4
SLOW = {"token_budget": 64, "fake": FakeEngineConfig(step_ms=10)}
Start = Callable[..., Awaitable[ServiceStack]]


@pytest.fixture
async def stack(start: Start) -> ServiceStack:
    return await start(prefill=SLOW)


def count_rows(stack: ServiceStack) -> list[int]:
    """Return a list that the rows of the prefill worker's steps are added to."""
    engine = stack.one("prefill")._parts.host.engine
    forward, rows = engine.forward, []

    def counted(batch: Any) -> Any:
        rows.append(sum(each.num_rows for each in batch))
        return forward(batch)

    engine.forward = counted
    return rows


def said(answer: Any) -> list[list[int]]:
    assert isinstance(answer, Completion), answer
    return [list(each.token_ids) for each in answer.choices]


async def ask(client: Client, text: str, **fields: Any) -> Any:
    return await client.ask(text, max_tokens=12, route="remote", ignore_eos=True, **fields)


async def test_two_prompts_that_begin_alike_compute_the_beginning_once(
    stack: ServiceStack, client: Client, tokenizer: Tokenizer
) -> None:
    rows = count_rows(stack)
    texts = [SHARED + "One.", SHARED + "Two, then.", SHARED + "Three?"]
    answers = await asyncio.gather(*(ask(client, text) for text in texts))

    prompts = [tokenizer.encode(text) for text in texts]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert [oracle(prompt, 12, ignore_eos=True)] == said(answer)
    num_shared = len(tokenizer.encode(SHARED)) // SIZE * SIZE
    assert sum(rows) == num_shared + sum(len(prompt) - num_shared for prompt in prompts)
    assert [0, num_shared, num_shared] == sorted(each.usage.num_cached_tokens for each in answers)
    await until_empty(stack)


async def test_choices_of_a_request_share_its_prompt(
    stack: ServiceStack, client: Client, tokenizer: Tokenizer
) -> None:
    rows = count_rows(stack)
    answer = await ask(client, SHARED, n=4, temperature=1.0, seed=7)

    prompt = tokenizer.encode(SHARED)
    assert 4 == len(said(answer))
    num_tail = len(prompt) % SIZE or SIZE
    assert len(prompt) + 3 * num_tail >= sum(rows) >= len(prompt)
    await until_empty(stack)


async def test_blocks_of_choices_are_stored_once(stack: ServiceStack, client: Client) -> None:
    """While four choices decode, the prompt's blocks are there once and held four times."""
    asking = asyncio.create_task(
        client.ask(
            SHARED, n=4, max_tokens=200, route="remote", ignore_eos=True, temperature=1.0, seed=7
        )
    )
    pool = stack.one("kv").host.book.pool
    decode = stack.one("decode")._parts.jobs
    await until(lambda: sum(each.num_steps > 0 for each in decode.sequences()) == 4)
    tables = [each.block_ids for each in decode.sequences()]
    num_whole = len(SHARED.encode()) // SIZE - 1

    assert 1 == len({tuple(table[:num_whole]) for table in tables})
    assert {4} == {pool.ref_count(block_id) for block_id in tables[0][:num_whole]}
    assert isinstance(await asking, Completion)
    await until_empty(stack)


async def test_when_the_first_is_cancelled_the_second_goes_on_from_its_last_commit(
    stack: ServiceStack, client: Client, tokenizer: Tokenizer
) -> None:
    rows = count_rows(stack)
    async with client.stream(SHARED + "One.", max_tokens=12, route="remote") as first:
        request_id = await first.accepted()
        await until(lambda: len(rows) >= 2)
        second = asyncio.create_task(ask(client, SHARED + "Two, then."))
        await until(lambda: stack.one("prefill")._parts.jobs.num_running == 2)
        await client.cancel(request_id)
        answer = await second

    prompt = tokenizer.encode(SHARED + "Two, then.")
    assert [oracle(prompt, 12, ignore_eos=True)] == said(answer)
    assert answer.usage.num_cached_tokens >= 2 * SIZE
    assert sum(rows) < 2 * len(prompt)
    await until_empty(stack)
