"""
Same request and seed, same tokens, on every path: the matrix of paths on the real model.

A cell is a kind of request on a path of a stack, among strangers drawn anew. Here every pair of
values meets; the slow test takes the whole product.
"""

import asyncio
import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from . import client, conftest
from .covering import Row, Values, combinations, covering_rows

pytestmark = [pytest.mark.nats, pytest.mark.model]

Request = dict[str, Any]  # Any: JSON

_NUM_TOKENS = 96
_NUM_STRANGERS = 31  # with the request itself all seats
# Longer than the 256 positions of which attention merges partial results.
_PROMPT = "The wind is strong today, so ride behind me and rest a little while you can. " * 15
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
_CELLS: Values = {
    "kind": tuple(_KINDS),
    "company": ("alone", "strangers", "pushed out twice"),
    "cache": ("cold", "hit"),
    "route": ("local", "remote"),
    "speculation": ("off", "ngram"),
}
_STACKS: Values = {
    "format": ("int8", "int4"),
    "threads": ("1", "2"),
    "chunk": ("16", "512"),
    "drafts": ("ngram", "model", "model, here", "layers, here"),
}
# The target itself is the best of drafts, and one that agrees in most places tests the most.
_MODEL = "smollm2-135m"
# 22 blocks of 32 tokens, of which the request needs 12.
_TIGHT = ["--kv-memory", "8.3MiB", "--kv-format", "int8"]
# One that stays holds four to seven of them. Few are left, so that those who come need more than
# there is ten steps later, with chunks of 16 too: the request has not said much by then. Who waits
# for a first block pushes nobody out, so several must be in before one needs its second.
_STAYING = {"max_tokens": 100, "ignore_eos": True, "priority": 1, "route": "local"}
_NUM_STAYING_TOKENS = 118
_PUSHING = {"max_tokens": 26, "ignore_eos": True, "route": "local", "speculation": "off"}
_NUM_PUSHING_TOKENS = 26
_NUM_PUSHING = 7
# Drafts are never late: else those that are wanted might not come.
_VARIABLES = {"SLIPSTREAM_NUM_GRANTED_BLOCKS": "2", "SLIPSTREAM_DRAFT_BUDGET_MS": "100"}
_NUM_TRIES = 5
_COMPARED = ("token_ids", "text", "finish_reason", "logprobs")


async def _say(asking: client.Client, cell: Row, rng: random.Random) -> list[Request]:
    """Return what the request said on a path: once, or twice where it must meet its own prefix."""
    salt = str(rng.random())
    path = {name: cell[name] for name in ("route", "speculation")}
    request = {**_COMMON, **_KINDS[cell["kind"]], **path, "cache_salt": salt}
    if cell["speculation"] != "off":
        # So many in any case, paying or not. With more than one it would say all of a text that
        # repeats itself in sixteen steps, before it can be pushed out.
        request["num_speculative_tokens"] = 1 if cell["company"] == "pushed out twice" else 4
    said = [await _alone(asking, request, rng)] if cell["cache"] == "hit" else []
    said.append(await _COMPANIES[cell["company"]](asking, request, rng))
    return said


async def _alone(asking: client.Client, request: Request, rng: random.Random) -> Request:
    return _heard(await asking.stream(request)) if rng.random() < 0.5 else await asking.ask(request)


async def _among_strangers(asking: client.Client, request: Request, rng: random.Random) -> Request:
    """Ask in the midst of strangers; none before it, so that its prefix is not evicted."""
    asked = asyncio.create_task(_alone(asking, request, rng))
    company = []
    for _ in range(_NUM_STRANGERS):
        await asyncio.sleep(rng.random() * 0.01)
        company.append(asyncio.create_task(asking.ask(_stranger(rng))))
    await _check_answered(company)
    return await asked


async def _pushed_out(asking: client.Client, request: Request, rng: random.Random) -> Request:
    """Let more important ones take all blocks as soon as it speaks, and again when it goes on."""
    async with _staying(asking, rng):
        heard, waves = client.Stream(), list[list[asyncio.Task[client.Answer]]]()
        async for message in asking.messages(request):
            heard.messages.append(message)
            is_undisturbed = all(task.done() for wave in waves for task in wave)
            if heard.token_ids and len(waves) < 2 and is_undisturbed:
                wave = [_pushing(rng) for _ in range(_NUM_PUSHING)]
                waves.append([asyncio.create_task(asking.ask(each)) for each in wave])
        await _check_answered(list(itertools.chain.from_iterable(waves)))
    return _heard(heard)


@contextlib.asynccontextmanager
async def _staying(asking: client.Client, rng: random.Random) -> AsyncIterator[None]:
    """Have one that nobody pushes out speak while a block runs."""
    request = {**_STAYING, "prompt_token_ids": _any_token_ids(rng, _NUM_STAYING_TOKENS)}
    messages = asking.messages(request)
    async for message in messages:
        if message["type"] == "token_frame":
            break
    rest = asyncio.create_task(_last(messages))
    try:
        yield
    finally:
        await asking.cancel(message["request_id"])
        ending = await rest
    assert "finished" == ending["type"], ending


async def _last(messages: AsyncIterator[client.Answer]) -> client.Answer:
    return [message async for message in messages][-1]


async def _check_answered(company: Sequence[asyncio.Task[client.Answer]]) -> None:
    for answer in await asyncio.gather(*company):
        assert "completion" == answer["type"], answer


_Company = Callable[[client.Client, Request, random.Random], Awaitable[Request]]
_COMPANIES: dict[str, _Company] = {
    "alone": _alone,
    "strangers": _among_strangers,
    "pushed out twice": _pushed_out,
}


def _stranger(rng: random.Random) -> Request:
    sampling: list[Request] = [
        {"temperature": 0},
        {"temperature": 1.5, "top_k": 40},
        {"temperature": 0.8, "presence_penalty": 1, "logprobs": 3},
        {"temperature": 1, "guided_regex": "[0-9]{3,200}"},
    ]
    return {
        "prompt": f"{rng.randrange(10**9)} " + "one two three " * rng.randrange(1, 12),
        "max_tokens": rng.randrange(4, 24),
        "route": rng.choice(("local", "remote")),
        "cache_salt": str(rng.random()),
        **rng.choice(sampling),
    }


def _pushing(rng: random.Random) -> Request:
    token_ids = _any_token_ids(rng, _NUM_PUSHING_TOKENS)
    return {**_PUSHING, "prompt_token_ids": token_ids, "temperature": rng.choice((0, 1.2))}


def _any_token_ids(rng: random.Random, number: int) -> list[int]:
    return [rng.randrange(1000, 40_000) for _ in range(number)]


def _heard(stream: client.Stream) -> Request:
    """Return a stream as the plain answer that it would have been."""
    ending = stream.ending
    assert "finished" == ending["type"], ending
    choice = {"text": stream.text, "token_ids": stream.token_ids, "logprobs": stream.logprobs}
    choice["finish_reason"] = ending["finish_reason"]
    return {"choices": [choice], "usage": ending["usage"]}


def _is_as_meant(cell: Row, usage: Request) -> bool:
    """Tell whether the path was taken: strangers may evict a prefix, or let a request be."""
    num_preemptions = usage.get("num_preemptions", 0)
    is_hit = usage.get("num_cached_tokens", 0) > 0
    if cell["company"] == "pushed out twice" and num_preemptions < 2:
        return False
    # Who is pushed out finds what it had computed itself.
    return is_hit if cell["cache"] == "hit" else not is_hit or num_preemptions > 0


async def _said_in(asking: client.Client, cell: Row, rng: random.Random) -> list[Request]:
    """Return all that the request said until it had taken the path of a cell."""
    said: list[Request] = []
    for _ in range(_NUM_TRIES):
        said += await _say(asking, cell, rng)
        if _is_as_meant(cell, said[-1]["usage"]):
            return said
    raise AssertionError(f"{cell}: {[each['usage'] for each in said]}")


def _drafting(drafts: str) -> dict[str, str]:
    """Return what a stack is told that makes such drafts, in a draft worker unless `here`."""
    kind, _, place = drafts.partition(", ")
    variables = {"SLIPSTREAM_DRAFT_KIND": kind}
    if place == "here":
        variables["SLIPSTREAM_DRAFT_PLACE"] = "decode"
    if kind == "model":
        variables["SLIPSTREAM_DRAFT_MODEL"] = _MODEL
    return variables


def _product(values: Values) -> list[Row]:
    return list(map(dict, combinations(values, len(values))))


async def _check_same(
    start_stack: conftest.StartStack, stacks: Sequence[Row], cells: Sequence[Row]
) -> None:
    said: dict[str, dict[str, Request]] = defaultdict(dict)
    for number, case in enumerate(stacks):
        rng = random.Random(number)
        running = start_stack(
            [*_TIGHT, "--format", case["format"], "--threads", case["threads"]],
            {
                **_VARIABLES,
                **_drafting(case["drafts"]),
                "SLIPSTREAM_TOKEN_BUDGET": case["chunk"],
            },
        )
        async with client.connected(running.nats_url) as asking:
            for cell in cells:
                for answer in await _said_in(asking, cell, rng):
                    (choice,) = answer["choices"]
                    assert _NUM_TOKENS == len(choice["token_ids"]), (case, cell, choice)
                    by_path = said[f"{cell['kind']}, {case['format']}"]
                    by_path[f"{len(by_path)}: {case}, {cell}"] = {
                        name: choice.get(name) or None for name in _COMPARED
                    }
            assert not (await asking.idle_audit()).get("problems")
        assert 0 == running.stop()

    for name, by_path in said.items():
        expected = next(iter(by_path.values()))
        assert dict.fromkeys(by_path, expected) == by_path, name


@pytest.mark.usefixtures("packed_int8", "packed_int4")
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_request_says_the_same_on_every_pair_of_ways(
    start_stack: conftest.StartStack,
) -> None:
    await _check_same(start_stack, covering_rows(_STACKS, 2), covering_rows(_CELLS, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("packed_int8", "packed_int4")
@pytest.mark.timeout(3600)
async def test_a_request_says_the_same_on_every_path(start_stack: conftest.StartStack) -> None:
    await _check_same(start_stack, _product(_STACKS), _product(_CELLS))
