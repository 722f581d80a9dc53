"""The prefix cache seen by clients: a hit changes when an answer comes, and nothing else."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slipstream.shared.model.fake_runner import next_token_id

from . import client, conftest, stack

pytestmark = [pytest.mark.nats, pytest.mark.timeout(240)]

SIZE = 32
_FAKE = ["--test-mode", "--engine", "fake"]
_BUSY = {"SLIPSTREAM_FAKE_STEP_MS": "2"}
_LETTERS = range(97, 123)
_BYTES_PER_BLOCK = 512  # of the fake engine
# Every hash collides there, and keys and values are rounded: a hit must not show in either.
_CONSTANT_HASH = ["--test-mode", "--block-hash-bits", "0"]
_REAL = {
    "float32": ["--format", "float32"],
    "int8-kv-constant-hash": ["--format", "float32", "--kv-format", "int8", *_CONSTANT_HASH],
}
_ROUTES = ["remote", "local"]

Request = dict[str, Any]  # Any: fields of a request


@pytest.fixture(scope="module", params=_REAL)
def model_stack(
    request: pytest.FixtureRequest, packed_float32: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[stack.Stack]:
    """The default model, with a cache that holds everything these tests ask."""
    arguments = [*_REAL[request.param], "--kv-memory", "256MiB"]
    with stack.running(arguments, tmp_path_factory.mktemp("prefix")) as started:
        yield started


@pytest.fixture
async def asking(model_stack: stack.Stack) -> AsyncIterator[client.Client]:
    """A client; whatever it asks leaves right books, with everything free or cached."""
    async with client.connected(model_stack.nats_url) as connected:
        yield connected
        _check_idle(await connected.idle_audit())


def _check_idle(books: client.Answer) -> None:
    """B71: each block is in one state; B62: the index holds none but committed ones."""
    assert [] == books.get("problems", [])
    held = {name: books[f"num_{name}"] for name in ("leased", "committed", "quarantined")}
    assert {"leased": 0, "committed": 0, "quarantined": 0} == held
    assert books["num_blocks"] == books["num_free"] + books["num_cached"] + books["num_granted"]
    assert books["num_cached"] == books.get("num_indexed", 0)


def _tokens(seed: str, num_tokens: int) -> list[int]:
    """Return tokens of a text that nothing else asks for."""
    choices = random.Random(seed)
    return [choices.randrange(300, 40_000) for _ in range(num_tokens)]


def _request(token_ids: Sequence[int], **fields: Any) -> Request:  # Any: as above
    greedy = {"temperature": 0, "ignore_eos": True, "max_tokens": 8}
    return {"prompt_token_ids": list(token_ids), **greedy, **fields}


def _num_cached(answer: client.Answer) -> int:
    num_tokens: int = answer["usage"].get("num_cached_tokens", 0)
    return num_tokens


async def _cold(asking: client.Client, request: Request, name: str) -> list[int]:
    """Return the answer under a salt that nobody used."""
    answer = await asking.ask({**request, "cache_salt": f"cold {name}"})
    assert 0 == _num_cached(answer)
    return client.token_ids_of(answer)


@pytest.mark.model
@pytest.mark.parametrize("route", _ROUTES)
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
async def test_b65_a_prompt_that_is_all_cached_is_answered_the_same(
    asking: client.Client, route: str, num_blocks: int
) -> None:
    request = _request(_tokens(f"b65 {route} {num_blocks}", num_blocks * SIZE), route=route)
    answers = [await asking.ask(request) for _ in range(3)]
    cold = await _cold(asking, request, f"b65 {route} {num_blocks}")

    # The last block is copied but for a token; a first one has none before it to be found by.
    num_found = num_blocks * SIZE - 1 if num_blocks > 1 else 0
    assert [0, num_found, num_found] == [_num_cached(each) for each in answers]
    assert [cold] * 3 == [client.token_ids_of(each) for each in answers]


@pytest.mark.model
@pytest.mark.parametrize("route", ["remote", pytest.param("local", marks=pytest.mark.slow)])
async def test_b66_a_chat_asked_again_and_again_does_not_drift(
    asking: client.Client, route: str
) -> None:
    text = " ".join(f"Item {number} costs {number * 7} coins." for number in range(52))
    chat = [{"role": "user", "content": f"{route}: {text} Which item costs 49 coins?"}]
    request = {**_request([], route=route, max_tokens=24), "messages": chat}
    del request["prompt_token_ids"]
    other = _request(_tokens(f"b66 {route}", 200), route=route)
    answers, others = [], []
    for _ in range(5):
        answers.append(await asking.ask(request))
        others.append(await asking.ask(other))
    cold = await _cold(asking, request, f"b66 {route}")

    assert answers[0]["usage"]["num_prompt_tokens"] > 500
    assert [cold] * 5 == [client.token_ids_of(each) for each in answers]
    assert 1 == len({tuple(client.token_ids_of(each)) for each in others})
    assert all(_num_cached(each) > 450 for each in answers[1:])


@pytest.mark.model
@pytest.mark.parametrize("route", _ROUTES)
async def test_b52_usage_counts_what_was_cached_streamed_and_plain(
    asking: client.Client, route: str
) -> None:
    request = _request(_tokens(f"b52 {route}", 200), route=route)
    first = await asking.ask(request)
    plain = await asking.ask(request)
    streamed = await asking.stream(request)

    counted = [_num_cached(each) for each in (first, plain, streamed.ending)]
    assert [0, 192, 192] == counted
    assert client.token_ids_of(first) == client.token_ids_of(plain) == streamed.token_ids


@pytest.mark.model
async def test_b69_a_salt_keeps_what_it_covers_to_itself(asking: client.Client) -> None:
    request = _request(_tokens("b69", 100))
    salts = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}]
    answers = [await asking.ask({**request, **salt}) for salt in (*salts, *salts)]

    assert [0, 0, 0, 96, 96, 96] == [_num_cached(each) for each in answers]
    assert 1 == len({tuple(client.token_ids_of(each)) for each in answers})


@pytest.mark.model
@pytest.mark.parametrize("route", _ROUTES)
async def test_b64_prompts_that_share_tokens_but_no_beginning_share_nothing(
    asking: client.Client, route: str
) -> None:
    """And those that begin alike share so much, whatever their hashes."""
    tail = _tokens(f"b64 {route}", 2 * SIZE + 5)
    head = _tokens(f"b64 head {route}", SIZE)
    prompts = [tail, head + tail, head[::-1] + tail, head + tail[::-1]]
    requests = [_request(prompt, route=route) for prompt in prompts]
    answers = [await asking.ask(each) for each in requests]
    cold = [await _cold(asking, each, f"b64 {route} {i}") for i, each in enumerate(requests)]

    assert [0, 0, 0, SIZE] == [_num_cached(each) for each in answers]
    assert cold == [client.token_ids_of(each) for each in answers]


@pytest.mark.model
@pytest.mark.parametrize("route", _ROUTES)
async def test_the_next_turn_of_a_chat_finds_what_was_said(
    asking: client.Client, route: str
) -> None:
    """The last token of an answer has no KV yet: of 40 and 60 tokens three blocks are whole."""
    prompt = _tokens(f"turns {route}", 40)
    said = client.token_ids_of(await asking.ask(_request(prompt, route=route, max_tokens=60)))
    await asking.idle_audit()
    turn = _request([*prompt, *said, *_tokens("more", 10)], route=route)
    answer = await asking.ask(turn)

    assert 96 == _num_cached(answer)
    assert await _cold(asking, turn, f"turns {route}") == client.token_ids_of(answer)


@pytest.mark.parametrize("hash_bits", [0, pytest.param(8, marks=pytest.mark.slow)])
async def test_b71_a_cache_far_too_small_gives_nobody_another_s_block(
    start_stack: conftest.StartStack, hash_bits: int
) -> None:
    """The fake engine checks every slot that it reads; 48 blocks for what would fill a thousand."""
    memory = f"{48 * _BYTES_PER_BLOCK}"
    sizes = ["--prefill", "2", "--decode", "2", "--kv-memory", memory]
    weak = ["--block-hash-bits", str(hash_bits)]
    running = start_stack([*_FAKE, *sizes, *weak], _BUSY)
    choices = random.Random(hash_bits)
    heads = [choices.choices(_LETTERS, k=160) for _ in range(4)]
    prompts = [
        choices.choice(heads)[: choices.randint(1, 160)] + choices.choices(_LETTERS, k=number % 40)
        for number in range(240)
    ]
    limit = asyncio.Semaphore(16)

    async def ask(number: int) -> client.Answer:
        request = _request(prompts[number], max_tokens=40, route=_ROUTES[number % 2])
        async with limit:
            answer = await asking.ask(request)
        assert _fake_answer(prompts[number], 40) == client.token_ids_of(answer)
        return answer

    async with client.connected(running.nats_url) as asking:
        answers = await asyncio.gather(*(ask(number) for number in range(len(prompts))))
        books = await asking.idle_audit()
    _check_idle(books)
    assert 48 == books["num_blocks"]
    counted = [_num_cached(each) for each in answers]
    assert all(
        each < answer["usage"]["num_prompt_tokens"]
        for each, answer in zip(counted, answers, strict=True)
    )
    assert sum(each > 0 for each in counted) > 20
    assert any(line["event"] == "preempted" for line in running.log), "the cache was never short"
    assert 0 == running.stop()


def _fake_answer(prompt: list[int], num_tokens: int) -> list[int]:
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token_id(token_ids))
    return token_ids[len(prompt) :]


@pytest.mark.model
@pytest.mark.parametrize("route", _ROUTES)
async def test_a_last_block_that_others_filled_is_copied(asking: client.Client, route: str) -> None:
    """Nobody's block is written twice: each says what it says alone."""
    prompt = _tokens(f"copied {route}", 2 * SIZE + 20)
    first = await asking.ask(_request(prompt, route=route, max_tokens=40))
    await asking.idle_audit()
    requests = [
        _request(prompt, route=route),
        _request([*prompt[:-4], 7, 8, 9], route=route),
        _request([*prompt, 5, 6], route=route, temperature=1, seed=3),
    ]
    answers = [await asking.ask(each) for each in (*requests, *requests)]
    cold = [await _cold(asking, each, f"copied {route} {i}") for i, each in enumerate(requests)]

    assert client.token_ids_of(first)[:8] == cold[0]
    assert cold * 2 == [client.token_ids_of(each) for each in answers]
    assert [len(prompt) - 1, len(prompt) - 4] == [_num_cached(each) for each in answers[:2]]


@pytest.mark.model
@pytest.mark.usefixtures("packed_int8")
@pytest.mark.parametrize(
    "weak",
    [pytest.param([], marks=pytest.mark.slow), _CONSTANT_HASH],
    ids=["hashes", "collisions"],
)
async def test_what_was_evicted_comes_back_from_the_file_and_answers_the_same(
    start_stack: conftest.StartStack, tmp_path: Path, weak: list[str]
) -> None:
    """A pool of 40 blocks: each prompt pushes the one before last out."""
    variables = {"SLIPSTREAM_SPILL_DIR": str(tmp_path), "SLIPSTREAM_SPILL_BYTES": "1GiB"}
    sizes = ["--format", "int8", "--kv-format", "int8", "--kv-memory", "16MiB"]
    running = start_stack([*sizes, *weak], variables)
    prompts = [_tokens(f"spilled {number}", 600) for number in range(4)]
    async with client.connected(running.nats_url) as asking:
        rounds = []
        for _ in range(3):
            rounds.append([await asking.ask(_request(each)) for each in prompts])
            await asking.idle_audit()
        cold = [await _cold(asking, _request(each), f"sp {i}") for i, each in enumerate(prompts)]
        books = await asking.idle_audit()
    _check_idle(books)

    assert [cold] * 3 == [[client.token_ids_of(each) for each in found] for found in rounds]
    num_back = [_num_cached(each) for found in rounds[1:] for each in found]
    assert min(num_back) > 500, num_back
    assert 0 == running.stop()


async def test_b62_the_index_is_bounded_by_the_pool(start_stack: conftest.StartStack) -> None:
    running = start_stack([*_FAKE, "--kv-memory", f"{64 * _BYTES_PER_BLOCK}"])
    limit = asyncio.Semaphore(24)

    async def ask(number: int) -> None:
        prompt = [number % 250, number // 250, *range(48)]
        async with limit:
            answer = await asking.ask(_request(prompt, max_tokens=1))
        assert 0 == _num_cached(answer)

    async with client.connected(running.nats_url) as asking:
        await asyncio.gather(*(ask(number) for number in range(500)))
        books = await asking.idle_audit()
        again = await asking.ask(_request([499 % 250, 499 // 250, *range(48)], max_tokens=1))
    _check_idle(books)
    assert 0 < books["num_indexed"] <= books["num_blocks"] == 64
    assert SIZE == _num_cached(again)
    assert 0 == running.stop()


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("packed_int8")
async def test_b74_shared_prefixes_in_int8_beside_each_other(
    start_stack: conftest.StartStack,
) -> None:
    """Mixed lengths at once, twice, as one after another."""
    arguments = ["--format", "int8", "--kv-format", "int8", "--kv-memory", "64MiB"]
    running = start_stack(arguments)
    common = _tokens("b74", 192)
    requests = [
        _request([*common[: 64 * (number % 4)], *_tokens(f"b74 {number}", 5 + number)])
        for number in range(24)
    ]
    async with client.connected(running.nats_url) as asking:
        rounds = [await asking.gather(*requests) for _ in range(2)]
        alone = [await _cold(asking, each, f"b74 {at}") for at, each in enumerate(requests)]

    assert [alone] * 2 == [[client.token_ids_of(each) for each in found] for found in rounds]
    assert sum(_num_cached(each) for each in rounds[1]) > 0


async def test_switched_off_nothing_is_cached(start_stack: conftest.StartStack) -> None:
    running = start_stack([*_FAKE, "--kv-memory", "64KiB", "--no-prefix-cache"])
    prompt = list(range(100))
    async with client.connected(running.nats_url) as asking:
        answers = [
            await asking.ask(_request(prompt, route=route)) for route in _ROUTES for _ in range(2)
        ]
        books = await asking.idle_audit()

    assert [0] * 4 == [_num_cached(each) for each in answers]
    assert [_fake_answer(prompt, 8)] * 4 == [client.token_ids_of(each) for each in answers]
    assert 0 == books["num_cached"]
    _check_idle(books)


def test_a_weak_hash_outside_of_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"--block-hash-bits 8 .*needs --test-mode"):
        stack.Stack(["--block-hash-bits", "8"], {}, tmp_path)
