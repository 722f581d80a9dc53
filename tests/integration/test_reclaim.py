"""Several decode workers on one pool: blocks go where they are needed, and nobody is stuck."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.generate import Completion
from slipstream.shared.model.tokenizer import Tokenizer

from .service_stack import Client, ServiceStack, oracle, until, until_empty

pytestmark = pytest.mark.nats

Start = Callable[..., Awaitable[ServiceStack]]


async def test_workers_that_are_all_short_of_blocks_give_way_to_each_other(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    """Two sequences of twelve blocks in a pool of sixteen, each alone on its worker."""
    stack = await start(
        kv={"num_blocks": 16}, decode={"num_granted_blocks": 2, "speculation": "off"}
    )
    await stack.add("decode")
    prompts = ["The first of two.", "And the second one."]
    answers = await asyncio.gather(
        *(client.ask(each, max_tokens=360, ignore_eos=True, deadline_ms=10_000) for each in prompts)
    )

    for prompt, answer in zip(prompts, answers, strict=True):
        assert isinstance(answer, Completion), answer
        expected = oracle(tokenizer.encode(prompt), 360, ignore_eos=True)
        assert expected == list(answer.choices[0].token_ids)
    assert any(each.usage.num_preemptions for each in answers if isinstance(each, Completion))
    await until_empty(stack)


async def test_idle_blocks_of_one_worker_serve_another(start: Start, client: Client) -> None:
    """A worker that hoards: what it doesn't use comes back while a prompt waits."""
    slow = FakeEngineConfig(step_ms=5)
    stack = await start(
        kv={"num_blocks": 24}, decode={"num_granted_blocks": 2, "fake": slow, "speculation": "off"}
    )
    decode = stack.one("decode")._parts
    hoard = asyncio.create_task(client.ask("Hold", max_tokens=300, ignore_eos=True))
    await until(lambda: decode.grants.num_blocks > 0)
    decode.grants._num_target = 12
    decode.grants._wanted.set()
    await until(lambda: decode.grants.num_blocks >= 4)
    # Sixteen blocks for this one: more than are free.
    answer = await client.ask("x" * 500, max_tokens=4, ignore_eos=True, deadline_ms=5000)

    assert isinstance(answer, Completion), answer
    assert not hoard.done(), "it was served beside the one that hoards"
    assert isinstance(await hoard, Completion)
    await until_empty(stack)
