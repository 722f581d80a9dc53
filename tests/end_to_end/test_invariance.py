"""Greedy answers of the whole pipeline don't depend on threads, chunk size or batch."""

import asyncio
from collections.abc import Callable

import pytest

from . import client, stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]

_STACKS = {
    "1 thread, chunks of 512": ["--threads", "1"],
    "2 threads, chunks of 512": ["--threads", "2"],
    "2 threads, chunks of 16": ["--threads", "2"],
    "1 thread, chunks of 100": ["--threads", "1"],
}
_CHUNKS = {"chunks of 512": "512", "chunks of 16": "16", "chunks of 100": "100"}
_NUM_REQUESTS = 32

StartStack = Callable[..., stack.Stack]


def _requests() -> list[dict[str, object]]:
    return [
        {
            "prompt": f"Number {i}: " + "the quick brown fox jumps, " * (i % 9 * 6),
            "max_tokens": 32,
            "temperature": 0,
            "ignore_eos": True,
        }
        for i in range(_NUM_REQUESTS)
    ]


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
async def test_greedy_answers_are_the_same_however_they_are_computed(
    weight_format: str, start_stack: StartStack, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(f"packed_{weight_format}")
    found = {}
    for name, arguments in _STACKS.items():
        chunk = next(size for words, size in _CHUNKS.items() if words in name)
        variables = {"SLIPSTREAM_TOKEN_BUDGET": chunk}
        running = start_stack(
            [*arguments, "--kv-memory", "512MiB", "--format", weight_format], variables
        )
        async with client.connected(running.nats_url) as connected:
            answers = await asyncio.gather(*(connected.ask(each) for each in _requests()))
            found[f"{name}, batch of 32"] = [client.token_ids_of(each) for each in answers]
            if "2 threads, chunks of 512" in name:
                # Under another salt: what the batch computed is cached.
                alone = [
                    await connected.ask({**each, "cache_salt": "alone"}) for each in _requests()
                ]
                found[f"{name}, one by one"] = [client.token_ids_of(each) for each in alone]
        assert 0 == running.stop()

    expected = next(iter(found.values()))
    assert {32} == {len(tokens) for tokens in expected}
    assert dict.fromkeys(found, expected) == found
