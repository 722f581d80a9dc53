"""Eight bits for weights and KV: a real stack gives one request the same tokens on every path."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from . import client, stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(240)]

_FORMAT = ["--format", "int8", "--kv-format", "int8"]
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


@pytest.fixture(scope="module")
def int8_stack(
    packed_int8: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[stack.Stack]:
    arguments = ["--kv-memory", "512MiB", "--threads", "2", *_FORMAT]
    running = stack.Stack(arguments, {}, tmp_path_factory.mktemp("int8"))
    try:
        yield running
        assert 0 == running.stop()
    finally:
        running.close()


@pytest.fixture
async def int8_client(int8_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with client.connected(int8_stack.nats_url) as connected:
        yield connected


async def test_the_answer_says_what_computed_it_and_makes_sense(int8_client: client.Client) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]

    answer = await int8_client.ask({"messages": question, "temperature": 0})

    assert "Paris" in client.text_of(answer)
    assert answer["numerics"].startswith("int8/kv-int8/native-")


@pytest.mark.parametrize("name", _REQUESTS)
async def test_a_request_has_one_answer_on_every_path(
    int8_client: client.Client, name: str
) -> None:
    """Alone or among strangers, prefilled here or there, with drafts or without: bit for bit."""
    request = {
        **_REQUESTS[name],
        "prompt": _PROMPT,
        "max_tokens": _NUM_TOKENS,
        "ignore_eos": True,
    }
    expected = client.token_ids_of(
        await int8_client.ask({**request, "route": "remote", "speculation": "off"})
    )

    paths = {
        "local": {"route": "local", "speculation": "off"},
        "drafted": {"route": "remote"},
        "local, drafted": {"route": "local"},
    }
    found = {
        path: client.token_ids_of(await int8_client.ask({**request, **more}))
        for path, more in paths.items()
    }
    for route in ("remote", "local"):
        answers = await asyncio.gather(
            int8_client.ask({**request, "route": route}),
            *(int8_client.ask(_stranger(route, number)) for number in range(15)),
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
