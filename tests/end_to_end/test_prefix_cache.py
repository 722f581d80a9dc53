"""A cached prefix changes latency and nothing else."""

import pytest

from . import client, conftest

pytestmark = [pytest.mark.nats, pytest.mark.timeout(180)]

_BLOCK = 32
_GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
_FAKE = ["--test-mode", "--engine", "fake"]


def ids(first: int, num_tokens: int) -> list[int]:
    """Return a prompt that begins like no other."""
    return [1000 + (first * 97 + 13 * position) % 30_000 for position in range(num_tokens)]


def num_cached(answer: client.Answer) -> int:
    """Return how much of the prompt an answer found cached."""
    return int(answer["usage"].get("num_cached_tokens", 0))


@pytest.mark.model
@pytest.mark.parametrize("route", ["remote", "local"])
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
async def test_b65_a_prompt_that_is_cached_whole_still_computes_its_end(
    real_client: client.Client, num_blocks: int, route: str
) -> None:
    prompt = ids(num_blocks + (10 if route == "local" else 0), num_blocks * _BLOCK)
    request = {**_GREEDY, "prompt_token_ids": prompt, "route": route}
    answers = [await real_client.ask(request) for _ in range(3)]

    assert 1 == len({tuple(client.token_ids_of(answer)) for answer in answers})
    expected = (num_blocks - 1) * _BLOCK
    assert [0, expected, expected] == [num_cached(answer) for answer in answers]


@pytest.mark.model
async def test_b66_reuse_does_not_drift(real_client: client.Client) -> None:
    """Five times the same chat, alternating with another one that shares its first half."""
    chat, other = ids(50, 500), [*ids(50, 250), *ids(51, 250)]
    said, others = [], []
    for _ in range(5):
        answer = await real_client.ask({**_GREEDY, "prompt_token_ids": chat})
        said.append(client.token_ids_of(answer))
        others.append(await real_client.ask({**_GREEDY, "prompt_token_ids": other}))

    assert [said[0]] * 5 == said
    assert 1 == len({tuple(client.token_ids_of(each)) for each in others})
    assert 480 == num_cached(answer)
    assert 224 == num_cached(others[0])


@pytest.mark.model
async def test_b52_what_was_cached_is_told_streamed_and_plain(real_client: client.Client) -> None:
    request = {**_GREEDY, "prompt_token_ids": ids(60, 200)}
    first = await real_client.ask(request)
    second = await real_client.ask(request)
    streamed = await real_client.stream(request)

    assert [0, 192, 192] == [num_cached(each) for each in (first, second, streamed.ending)]
    assert client.token_ids_of(first) == streamed.token_ids


@pytest.mark.model
async def test_b69_no_prefix_is_found_under_another_salt(real_client: client.Client) -> None:
    request = {**_GREEDY, "prompt_token_ids": ids(70, 100)}
    salted = {**request, "cache_salt": "a"}
    answers = [await real_client.ask(each) for each in (request, salted, request, salted)]
    elsewhere = await real_client.ask({**request, "cache_salt": "b"})

    assert [0, 0, 96, 96] == [num_cached(answer) for answer in answers]
    assert 0 == num_cached(elsewhere)
    assert 1 == len({tuple(client.token_ids_of(each)) for each in (*answers, elsewhere)})


@pytest.mark.model
async def test_the_next_turn_finds_what_was_said(real_client: client.Client) -> None:
    prompt = ids(80, 40)
    answer = await real_client.ask({**_GREEDY, "prompt_token_ids": prompt, "max_tokens": 60})
    said = client.token_ids_of(answer)
    longer = {**_GREEDY, "prompt_token_ids": [*prompt, *said, *ids(81, 5)]}
    await real_client.idle_audit()
    turn = await real_client.ask(longer)

    assert 96 == num_cached(turn)
    unshared = await real_client.ask({**longer, "cache_salt": "fresh"})
    assert client.token_ids_of(unshared) == client.token_ids_of(turn)


async def test_b64_colliding_hashes_share_nothing(start_stack: conftest.StartStack) -> None:
    """With a hash of one bit; a wrong block would be found by the engine's checksums."""
    running = start_stack([*_FAKE, "--kv-memory", "1MiB", "--block-hash-bits", "1"])
    prompts = [chr(97 + number) * 130 for number in range(12)]
    async with client.connected(running.nats_url) as asking:
        first = [await asking.ask({**_GREEDY, "prompt": prompt}) for prompt in prompts]
        again = [await asking.ask({**_GREEDY, "prompt": prompt}) for prompt in prompts]
        books = await asking.idle_audit()

    assert [client.token_ids_of(each) for each in first] == [
        client.token_ids_of(each) for each in again
    ]
    assert 0 == sum(num_cached(each) for each in first)
    assert 0 < sum(num_cached(each) for each in again)
    assert [] == books.get("problems", [])


async def test_b71_b62_cached_blocks_are_counted_once_and_bounded_by_the_pool(
    start_stack: conftest.StartStack,
) -> None:
    running = start_stack([*_FAKE, "--kv-memory", "24KiB"])
    common = "shared prefix " * 6
    async with client.connected(running.nats_url) as asking:
        for number in range(60):
            request = {**_GREEDY, "prompt": f"{common if number % 2 else ''}{number}" + "x" * 90}
            client.token_ids_of(await asking.ask(request))
        books = await asking.idle_audit()

    states = ("free", "granted", "leased", "committed", "cached", "quarantined")
    assert books["num_blocks"] == sum(books[f"num_{state}"] for state in states)
    assert 0 < books["num_cached"] <= books["num_blocks"]
    assert [0, 0, 0] == [books[f"num_{state}"] for state in ("leased", "committed", "quarantined")]
    assert [] == books.get("problems", [])


@pytest.mark.model
@pytest.mark.usefixtures("packed_int8")
async def test_b74_shared_prefixes_in_int8_beside_each_other(
    start_stack: conftest.StartStack,
) -> None:
    """Mixed lengths at once, twice, as one after another."""
    arguments = ["--format", "int8", "--kv-format", "int8", "--kv-memory", "64MiB"]
    running = start_stack(arguments)
    requests = [
        {
            **_GREEDY,
            "prompt_token_ids": [*ids(90, 64 * (number % 4)), *ids(91 + number, 5 + number)],
        }
        for number in range(24)
    ]
    async with client.connected(running.nats_url) as asking:
        rounds = [await asking.gather(*requests) for _ in range(2)]
        alone = [await asking.ask({**each, "cache_salt": "alone"}) for each in requests]

    expected = [client.token_ids_of(answer) for answer in alone]
    assert [expected] * 2 == [[client.token_ids_of(each) for each in found] for found in rounds]
    assert sum(num_cached(each) for each in rounds[1]) > 0
