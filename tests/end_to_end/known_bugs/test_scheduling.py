"""Known bugs of scheduling: preemption, chunks, priorities."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer

from slipstream.shared.model.fake_runner import next_token_id
from tests.end_to_end import client
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.timeout(240)]

_LONG_S = 150.0
_GREEDY = {"temperature": 0, "ignore_eos": True}
_ROUTES = ["remote", "local"]


@pytest.mark.parametrize("route", _ROUTES)
async def test_b75_preempted_streams_come_back_whole(
    tight: client.Client, fake_tokenizer: Tokenizer, route: str
) -> None:
    """Eight of 100 + 150 tokens in a pool for two of them."""
    prompts = [f"{number}: " + "x" * 97 for number in range(8)]

    streams = await _stream_all(
        tight, [{**_GREEDY, "prompt": each, "max_tokens": 150, "route": route} for each in prompts]
    )

    assert sum(each.ending["usage"].get("num_preemptions", 0) for each in streams) > 0
    for prompt, found in zip(prompts, streams, strict=True):
        # `token_ids` asserts that there is no gap; here that nothing came twice either.
        assert 150 == sum(len(frame["token_ids"]) for frame in found.frames)
        assert _continuation(fake_tokenizer, prompt, 150) == found.token_ids
        assert fake_tokenizer.decode(found.token_ids) == found.text


@pytest.mark.model
async def test_b75_a_real_model_repeats_nothing_and_forgets_nothing(
    hard: client.Client, roomy: client.Client
) -> None:
    """Seeded, with penalties: counts and noise too are rebuilt when a sequence comes back."""
    # Long enough that they meet in the pool, however slowly prompts are computed.
    rest = {"max_tokens": 120, "ignore_eos": True, "temperature": 0.8, "frequency_penalty": 0.3}
    requests = [
        {**rest, "prompt": f"Tale {number}: " + "the quick brown fox jumps, " * 12, "seed": number}
        for number in range(8)
    ]

    pressed = await recipes.together(hard, requests, _LONG_S)
    at_ease = await recipes.together(roomy, requests, _LONG_S)

    assert sum(each["usage"].get("num_preemptions", 0) for each in pressed) > 0
    assert recipes.said(at_ease) == recipes.said(pressed)


@pytest.mark.parametrize("route", _ROUTES)
async def test_b76_a_long_prompt_among_decoding_requests_is_not_thrashed(
    tight: client.Client, fake_tokenizer: Tokenizer, route: str
) -> None:
    short = [
        {**_GREEDY, "prompt": f"s{number}", "max_tokens": 60, "route": route}
        for number in range(10)
    ]
    long_prompt = "y" * 400  # of 512 slots; several budgets
    long = {**_GREEDY, "prompt": long_prompt, "max_tokens": 20, "route": route}

    answers = await recipes.together(tight, [*short, long], _LONG_S)

    assert [60] * 10 + [20] == [len(client.token_ids_of(answer)) for answer in answers]
    assert _continuation(fake_tokenizer, long_prompt, 20) == client.token_ids_of(answers[-1])
    num_preemptions = [each["usage"].get("num_preemptions", 0) for each in answers]
    assert num_preemptions[-1] <= 2
    assert sum(num_preemptions) <= 20


@pytest.mark.parametrize("route", _ROUTES)
async def test_b77_a_short_prompt_passes_a_long_one(
    chunked: client.Client, fake_tokenizer: Tokenizer, route: str
) -> None:
    """The long prompt takes hundreds of steps, the short one's first token a few."""
    long_prompt = "l" * 4000
    long = {**_GREEDY, "prompt": long_prompt, "max_tokens": 4, "route": route, "cache_salt": route}
    short = {**_GREEDY, "prompt": "short one.", "max_tokens": 4, "route": route}
    is_accepted = asyncio.Event()
    order: list[str] = []

    async def read(name: str, request: recipes.Request) -> client.Stream:
        found = client.Stream()
        async for message in chunked.messages(request, timeout_s=_LONG_S):
            found.messages.append(message)
            is_accepted.set()
            if message["type"] == "token_frame" and message["token_ids"] and name not in order:
                order.append(name)
        return found

    reading = asyncio.create_task(read("long", long))
    await is_accepted.wait()
    await recipes.until(chunked, "prefill" if route == "remote" else "decode", 1)
    passed = await read("short", short)
    found = await reading

    assert ["short", "long"] == order
    assert 4 == len(passed.token_ids)
    assert _continuation(fake_tokenizer, long_prompt, 4) == found.token_ids


async def test_b79_mixed_priorities_in_a_tight_pool_all_finish(
    tight: client.Client, fake_tokenizer: Tokenizer
) -> None:
    """Later arrivals are more urgent; whoever is pushed out comes back whole."""
    prompts = [f"{number}: " + "p" * 60 for number in range(8)]
    requests = [
        {**_GREEDY, "prompt": prompt, "max_tokens": 100, "priority": number, "route": route}
        for (number, prompt), route in zip(
            enumerate(prompts), itertools.cycle(_ROUTES), strict=False
        )
    ]

    answers = await recipes.together(tight, requests, _LONG_S)

    expected = [_continuation(fake_tokenizer, prompt, 100) for prompt in prompts]
    assert expected == [client.token_ids_of(answer) for answer in answers]
    assert sum(each["usage"].get("num_preemptions", 0) for each in answers) > 0


async def test_b79_the_least_urgent_is_pushed_out(tight: client.Client) -> None:
    """Though it came first: two that can't both stay to the end."""
    request = {**_GREEDY, "max_tokens": 250, "route": "local"}
    idle = asyncio.create_task(tight.ask({**request, "prompt": "i" * 32, "priority": -5}))
    await recipes.until(tight, "decode", 1)

    urgent = await tight.ask({**request, "prompt": "u" * 32, "priority": 5})
    waited = await idle

    assert 0 == urgent["usage"].get("num_preemptions", 0)
    assert waited["usage"].get("num_preemptions", 0) >= 1
    assert [250, 250] == [len(client.token_ids_of(each)) for each in (urgent, waited)]


@pytest.mark.parametrize("route", _ROUTES)
async def test_b84_small_chunks_change_no_token(
    chunked: client.Client, fake_tokenizer: Tokenizer, route: str
) -> None:
    prompts = [f"{number} " + "c" * (5 + 15 * number) for number in range(20)]
    requests = [{**_GREEDY, "prompt": each, "max_tokens": 8, "route": route} for each in prompts]

    answers = await recipes.together(chunked, requests, _LONG_S)

    expected = [_continuation(fake_tokenizer, prompt, 8) for prompt in prompts]
    assert expected == [client.token_ids_of(answer) for answer in answers]


@pytest.mark.model
async def test_b84_small_chunks_of_a_real_model_change_no_token(
    hard: client.Client, roomy: client.Client
) -> None:
    requests = [
        {**_GREEDY, "prompt": "number seven " * count + "and", "max_tokens": 8, "logprobs": 1}
        for count in range(2, 100, 7)
    ]

    small = await recipes.together(hard, requests, _LONG_S)
    large = await recipes.together(roomy, requests, _LONG_S)

    assert [each["choices"] for each in large] == [each["choices"] for each in small]


async def _stream_all(
    asking: client.Client, requests: Sequence[dict[str, Any]]
) -> list[client.Stream]:
    return await asyncio.gather(*(asking.stream(each, timeout_s=_LONG_S) for each in requests))


def _continuation(tokenizer: Tokenizer, prompt: str, num_tokens: int) -> list[int]:
    """Return what the fake engine says after a prompt, by its definition."""
    token_ids = list(tokenizer.encode(prompt).ids)
    for _ in range(num_tokens):
        token_ids.append(next_token_id(token_ids))
    return token_ids[-num_tokens:]
