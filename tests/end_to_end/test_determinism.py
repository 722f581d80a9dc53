"""
Same request and seed, same tokens, on every path: the matrix of paths on the real model.

Each kind of request takes every path once; a pair of stacks differs in all that a stack can differ
in (threads, chunks, room), and the slow tests take all stacks and formats. Each run is among other
strangers, whose prompts, lengths and parameters are drawn anew.
"""

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from . import client, conftest

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(600)]

Request = dict[str, Any]  # Any: JSON

_NUM_TOKENS = 64
_NUM_STRANGERS = 32
_PROMPT = "The wind is strong today, so ride behind me and rest a little while you can. " * 6
_COMMON = {"prompt": _PROMPT, "max_tokens": _NUM_TOKENS, "ignore_eos": True, "priority": -1}
_KINDS: dict[str, Request] = {
    "greedy": {"temperature": 0, "logprobs": 2},
    "sampled": {
        "temperature": 1.1,
        "seed": 77,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.15,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {"100": -5},
    },
    "constrained": {"temperature": 0.9, "seed": 5, "guided_regex": "[a-z ,]{400,900}\\."},
}
# 24 blocks of 32, of which one subject needs 6: strangers push it out.
_ROOMY, _TIGHT = ["--kv-memory", "512MiB"], ["--kv-memory", "9MiB"]
_PATHS = [
    {"route": route, "speculation": speculation}
    for route, speculation in itertools.product(("local", "remote"), ("off", "ngram"))
]


async def _answers(asking: client.Client, name: str, rng: random.Random) -> dict[str, Any]:
    """Return what a kind of request says on each path of one stack."""
    subject = {**_COMMON, **_KINDS[name]}
    found = {}
    for path in _PATHS:
        salt = f"{name} {rng.random()}"
        where = f"{path['route']}, speculation {path['speculation']}"
        for cache in ("cold", "hit"):
            answer = await asking.ask({**subject, **path, "cache_salt": salt})
            assert (cache == "hit") == bool(answer["usage"].get("num_cached_tokens", 0))
            found[f"alone, {where}, {cache}"] = answer
    for path in (_PATHS[0], _PATHS[-1]):
        strangers = [_stranger(rng) for _ in range(_NUM_STRANGERS)]
        company = [asyncio.create_task(asking.ask(each)) for each in strangers]
        await asyncio.sleep(rng.random() * 0.3)
        salt = f"{name} {rng.random()}"
        answer = await asking.ask({**subject, **path, "cache_salt": salt}, timeout_s=300)
        for stranger in await asyncio.gather(*company):
            assert "completion" == stranger["type"], stranger
        found[f"among strangers, {path}"] = answer
    return found


def _stranger(rng: random.Random) -> Request:
    sampling: list[Request] = [
        {"temperature": 0},
        {"temperature": 1.5, "top_k": 40},
        {"temperature": 0.8, "presence_penalty": 1, "logprobs": 3},
        {"temperature": 1, "guided_regex": "[0-9]{3,200}"},
    ]
    return {
        "prompt": f"{rng.randrange(10**9)} " + "one two three " * rng.randrange(1, 12),
        "max_tokens": rng.randrange(4, 60),
        "route": rng.choice(("local", "remote")),
        "cache_salt": str(rng.random()),
        **rng.choice(sampling),
    }


def _stacks(*, is_whole: bool) -> Iterator[tuple[list[str], str]]:
    """Return options and chunk size of each stack."""
    pairs = [(["--threads", "1", *_TIGHT], "16"), (["--threads", "2", *_ROOMY], "512")]
    if not is_whole:
        yield from pairs
        return
    for threads, room, chunk in itertools.product("12", (_TIGHT, _ROOMY), ("16", "512")):
        yield ["--threads", threads, *room], chunk


async def _check_same(
    start_stack: conftest.StartStack, weight_format: str, *, is_whole: bool
) -> None:
    said: dict[str, dict[str, object]] = {name: {} for name in _KINDS}
    num_preemptions = 0
    for number, (arguments, chunk) in enumerate(_stacks(is_whole=is_whole)):
        rng = random.Random(number)
        running = start_stack(
            [*arguments, "--format", weight_format, "--kv-format", "int8"],
            {"SLIPSTREAM_TOKEN_BUDGET": chunk, "SLIPSTREAM_NUM_GRANTED_BLOCKS": "2"},
        )
        async with client.connected(running.nats_url) as asking:
            for name in _KINDS:
                for path, answer in (await _answers(asking, name, rng)).items():
                    num_preemptions += answer["usage"].get("num_preemptions", 0)
                    (choice,) = answer["choices"]
                    assert _NUM_TOKENS == len(choice["token_ids"]), (path, choice)
                    said[name][f"{arguments}, chunk {chunk}, {path}"] = choice
        assert 0 == running.stop()

    for name, by_path in said.items():
        expected = next(iter(by_path.values()))
        assert dict.fromkeys(by_path, expected) == by_path, name
    assert num_preemptions >= 2, "nobody was ever pushed out"


@pytest.mark.usefixtures("packed_int4")
async def test_a_request_says_the_same_on_every_path(start_stack: conftest.StartStack) -> None:
    await _check_same(start_stack, "int4", is_whole=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
async def test_a_request_says_the_same_on_every_path_of_every_stack(
    weight_format: str, start_stack: conftest.StartStack, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(f"packed_{weight_format}")
    await _check_same(start_stack, weight_format, is_whole=True)
