"""When blocks run out somebody gives way: the right one, seldom, and without a trace in tokens."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.generate import Completion
from slipstream.shared.model.tokenizer import Tokenizer

from .service_stack import Client, ServiceStack, oracle, until, until_empty

pytestmark = pytest.mark.nats

Start = Callable[..., Awaitable[ServiceStack]]

_SHORT = {"max_tokens": 24, "ignore_eos": True}
_COMES_BACK_S = 10.0
_STEP = {"fake": FakeEngineConfig(step_ms=2.0)}


@pytest.mark.parametrize("route", ["remote", "local"])
async def test_low_priorities_give_way_and_high_ones_never_do(
    start: Start, client: Client, tokenizer: Tokenizer, route: str
) -> None:
    """B79: the urgent ones come last, when the pool is full already."""
    stack = await start(kv={"num_blocks": 24}, every=_STEP, decode={"num_granted_blocks": 4})
    prompts = [f"{number}: the wind is strong today" for number in range(8)]
    urgent = {f"{number}: the wind is strong today": 10 for number in (6, 7)}

    async def ask(number: int, prompt: str) -> object:
        await asyncio.sleep(0.02 * number)
        return await client.ask(
            prompt, max_tokens=150, ignore_eos=True, route=route, priority=urgent.get(prompt, 0)
        )

    answers = await asyncio.gather(*(ask(*each) for each in enumerate(prompts)))

    num_preemptions = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        assert isinstance(answer, Completion), answer
        token_ids = list(answer.choices[0].token_ids)
        assert oracle(tokenizer.encode(prompt), 150, ignore_eos=True) == token_ids
        num_preemptions[prompt] = answer.usage.num_preemptions
    assert sum(num_preemptions.values()) > 0, "the pool was never short"
    assert [0, 0] == [num_preemptions[prompt] for prompt in urgent]
    assert 0 == num_preemptions[prompts[0]], "the oldest gave way"
    await until_empty(stack)


async def test_a_long_prompt_among_streams_is_not_preempted_again_and_again(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    """B76: nobody comes back before there is room for all of it and for the others to grow."""
    stack = await start(
        kv={"num_blocks": 40},
        every=_STEP,
        decode={"num_granted_blocks": 4, "token_budget": 64},
        scheduler={"route": "local"},
    )
    streams = [f"{number}: ride behind me" for number in range(10)]
    with capture_logs() as lines:
        asks = [
            asyncio.create_task(client.ask(each, max_tokens=130, ignore_eos=True))
            for each in streams
        ]
        await asyncio.sleep(0.1)
        long = "the long one " * 40
        asks.append(asyncio.create_task(client.ask(long, max_tokens=60, ignore_eos=True)))
        answers = await asyncio.gather(*asks)

    assert all(isinstance(answer, Completion) for answer in answers), answers
    assert isinstance(answers[-1], Completion)
    expected = oracle(tokenizer.encode(long), 60, ignore_eos=True)
    assert expected == list(answers[-1].choices[0].token_ids)
    preempted = Counter(line["request_id"] for line in lines if line["event"] == "preempted")
    assert preempted, "the pool was never short"
    assert max(preempted.values()) <= 3
    await until_empty(stack)


async def test_one_that_gave_way_comes_back_though_new_prompts_keep_coming(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    """Prompts on the prefill worker know nothing of it, and take what comes free: not for ever."""
    stack = await start(
        kv={"num_blocks": 24},
        every=_STEP,
        decode={"num_granted_blocks": 4, "speculation": "off"},
        scheduler={"route": "remote"},
    )
    long = "old words " * 30
    num_served = 0
    preempted = asyncio.Event()

    async def keep_asking(number: int) -> None:
        nonlocal num_served
        await preempted.wait()
        while not old.done():
            await client.ask(f"{number}.{num_served}: " + "new words " * 12, **_SHORT)
            num_served += 1

    with capture_logs() as lines:
        older = asyncio.create_task(client.ask("older", max_tokens=420, ignore_eos=True))
        await asyncio.sleep(0.05)
        old = asyncio.create_task(client.ask(long, max_tokens=300, ignore_eos=True))
        stream = [asyncio.create_task(keep_asking(number)) for number in range(24)]
        await until(lambda: any(each["event"] == "preempted" for each in lines))
        preempted.set()
        async with asyncio.timeout(_COMES_BACK_S):
            answer = await asyncio.shield(old)
        num_served_meanwhile = num_served
        await asyncio.gather(older, *stream)

    assert isinstance(answer, Completion), answer
    assert 1 <= answer.usage.num_preemptions <= 2
    expected = oracle(tokenizer.encode(long), 300, ignore_eos=True)
    assert expected == list(answer.choices[0].token_ids)
    assert num_served_meanwhile > 8, "there was no stream"
    await until_empty(stack)
