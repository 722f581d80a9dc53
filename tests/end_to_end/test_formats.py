"""Formats of weights and KV: a real stack gives one request the same tokens on every path."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from . import client, stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(240)]

_NUM_TOKENS = 64
_PROMPT = (
    "The history of the steam engine begins with " + "pumps that lifted water out of mines, " * 9
)
_REQUESTS = {
    "greedy": {"temperature": 0},
    "seeded": {
        "temperature": 0.9,
        "top_p": 0.95,
        "seed": 7,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
    },
}


@pytest.fixture(
    scope="module", params=["int8", "int4", pytest.param("bf16", marks=pytest.mark.slow)]
)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[stack.Stack]:
    name = request.param
    request.getfixturevalue(f"packed_{name}")
    arguments = ["--kv-memory", "512MiB", "--threads", "2", "--format", name]
    with stack.running(arguments, tmp_path_factory.mktemp(name)) as started:
        yield started


@pytest.fixture
async def connection(running: stack.Stack) -> AsyncIterator[client.Client]:
    async with client.connected(running.nats_url) as connected:
        yield connected


async def test_the_answer_says_what_computed_it_and_makes_sense(
    connection: client.Client, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["running"]

    # No chat: there the model is all but undecided in float32, between this answer and another.
    answer = await connection.ask({"prompt": "The capital of France is", "temperature": 0})

    assert client.text_of(answer).startswith(" Paris")
    kv = "int8" if name == "int4" else name
    assert answer["numerics"].startswith(f"{name}/kv-{kv}/native-")


@pytest.mark.parametrize("name", _REQUESTS)
async def test_a_request_has_one_answer_on_every_path(connection: client.Client, name: str) -> None:
    """Alone or among strangers, prefilled here or there, with drafts or without: bit for bit."""
    request = {
        **_REQUESTS[name],
        "prompt": _PROMPT,
        "max_tokens": _NUM_TOKENS,
        "ignore_eos": True,
        "cache_salt": name,
    }
    expected = client.token_ids_of(
        await connection.ask({**request, "route": "remote", "speculation": "off"})
    )

    paths = {
        "local": {"route": "local", "speculation": "off"},
        "drafted": {"route": "remote"},
        "local, drafted": {"route": "local"},
    }
    found = {
        path: client.token_ids_of(
            await connection.ask({**request, **more, "cache_salt": f"{name}, {path}"})
        )
        for path, more in paths.items()
    }
    # Under the salt of the first: what it computed is cached.
    found["cached"] = client.token_ids_of(await connection.ask(request))
    for route in ("remote", "local"):
        answers = await asyncio.gather(
            connection.ask({**request, "route": route, "cache_salt": f"{name}, {route}, among"}),
            *(connection.ask(_stranger(route, number)) for number in range(15)),
        )
        found[f"{route}, among strangers"] = client.token_ids_of(answers[0])

    assert _NUM_TOKENS == len(expected)
    assert dict.fromkeys(found, expected) == found


def _stranger(route: str, number: int) -> dict[str, object]:
    """Return a request of any length and temperature."""
    choices = random.Random(f"{route} {number}")
    return {
        "prompt": "one two three four " * choices.randint(1, 60),
        "temperature": choices.choice([0, 0.7, 1.3]),
        "max_tokens": choices.randint(5, 60),
        "ignore_eos": True,
        "route": choices.choice(["remote", "local"]),
    }
