"""The Python client with all five services on a real server, while things end or break."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.client import (
    AsyncClient,
    AsyncStream,
    Client,
    NoSchedulerError,
    RequestFailedError,
    ServerUnreachableError,
)
from slipstream.shared.bus import nats_bus as nats_bus_module
from slipstream.shared.client.answers import Answer
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.model.tokenizer import Tokenizer

from .service_stack import LONG, ServiceStack, oracle, until, until_empty

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]

Start = Callable[..., Awaitable[ServiceStack]]
SLOW = {"fake": FakeEngineConfig(step_ms=10)}
STORY: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True, "temperature": 1.0, "seed": 11}


@pytest.fixture
async def start(own_nats_server: Any, tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts services on a server that a test may stop."""
    stacks = []

    async def make(**settings: dict[str, Any]) -> ServiceStack:
        stacks.append(ServiceStack(own_nats_server.url, tmp_path, **settings))
        return await stacks[-1].start("scheduler", "kv", "prefill", "decode")

    yield make
    for stack in stacks:
        await stack.stop()


@pytest.fixture
async def client(own_nats_server: Any) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(own_nats_server.url, timeout_s=30) as made:
        yield made


async def begun(stream: AsyncStream, num_characters: int = 40) -> list[str]:
    """Return what a stream says until there is so much of it."""
    pieces: list[str] = []
    while len("".join(pieces)) < num_characters:
        pieces.append(await anext(stream))
    return pieces


async def rest(stream: AsyncStream) -> list[str]:
    return [piece async for piece in stream]


def essence(answer: Answer) -> tuple[str, list[int], str]:
    return answer.text, answer.token_ids, answer.finish_reason


async def test_an_answer_is_what_the_engine_says(
    start: Start, client: AsyncClient, tokenizer: Tokenizer
) -> None:
    stack = await start()
    answer = await client.generate(LONG, max_tokens=20, temperature=0, ignore_eos=True)

    assert oracle(tokenizer.encode(LONG), 20, ignore_eos=True) == answer.token_ids
    assert tokenizer.decode(answer.token_ids) == answer.text
    assert ("length", 20) == (answer.finish_reason, answer.usage.num_output_tokens)
    await until_empty(stack)


async def test_a_seed_of_the_clients_own_is_the_one_that_is_used(
    start: Start, client: AsyncClient
) -> None:
    await start()
    turns = [{"role": "user", "content": "Name three rivers."}]
    first = await client.chat(turns, max_tokens=30, temperature=1.0)
    assert first.seed is not None
    second = await client.chat(turns, max_tokens=30, temperature=1.0, seed=first.seed)

    assert essence(first) == essence(second)


async def test_leaving_a_stream_frees_its_blocks_at_once(start: Start, client: AsyncClient) -> None:
    stack = await start(decode=SLOW)
    async with client.stream(LONG, max_tokens=2000, ignore_eos=True) as stream:
        await begun(stream)
        assert stack.desk.records

    assert stream.is_cancelled
    await until_empty(stack, 1.0)


@pytest.mark.parametrize("rest_s", [0.0, 0.002, 0.02, 0.2])
async def test_a_cancelled_task_frees_its_blocks_in_every_phase(
    start: Start, client: AsyncClient, rest_s: float
) -> None:
    """Also when it is cancelled before anybody has said which request it is."""
    stack = await start(decode=SLOW)
    await client.generate("Hello", max_tokens=1)
    task = asyncio.create_task(client.generate(LONG, max_tokens=2000, ignore_eos=True))
    await asyncio.sleep(rest_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await until_empty(stack, 1.0)


async def test_a_stream_survives_its_decode_worker(start: Start, client: AsyncClient) -> None:
    stack = await start(decode=SLOW)
    expected = await client.generate(LONG, **STORY)
    async with client.stream(LONG, **STORY) as stream:
        pieces = await begun(stream)
        await stack.kill(*stack.living("decode"))
        await stack.add("decode")
        pieces += await rest(stream)

    assert essence(expected) == essence(stream.answer)
    assert expected.text == "".join(pieces)
    assert 0 == stream.num_retries, "another attempt went on with it"
    await until_empty(stack)


async def test_a_stream_survives_a_restart_of_the_server(
    start: Start, client: AsyncClient, own_nats_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_bus_module, "RECONNECT_WAIT_S", 0.1)
    stack = await start(decode=SLOW)
    expected = await client.generate(LONG, **STORY)
    async with client.stream(LONG, **STORY) as stream:
        pieces = await begun(stream)
        own_nats_server.stop()
        await asyncio.sleep(0.5)
        own_nats_server.start()
        pieces += await rest(stream)

    assert essence(expected) == essence(stream.answer)
    assert expected.text == "".join(pieces)
    await until_empty(stack)


async def test_a_request_that_is_sent_while_the_server_is_away_is_answered(
    start: Start, client: AsyncClient, own_nats_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_bus_module, "RECONNECT_WAIT_S", 0.1)
    await start()
    expected = await client.generate(LONG, **STORY)
    own_nats_server.stop()
    task = asyncio.create_task(client.generate(LONG, **STORY))
    await asyncio.sleep(0.5)
    own_nats_server.start()

    assert essence(expected) == essence(await task)


async def test_a_scheduler_that_comes_late_answers(start: Start, client: AsyncClient) -> None:
    task = asyncio.create_task(client.generate(LONG, max_tokens=4))
    await asyncio.sleep(0.2)
    await start()

    assert 4 >= (await task).usage.num_output_tokens > 0


@pytest.mark.slow
async def test_without_a_scheduler_or_a_server_the_error_says_so(
    client: AsyncClient, own_nats_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.client.nats_transport.CONNECT_S", 0.5)
    with pytest.raises(NoSchedulerError, match=own_nats_server.url):
        await client.generate("Hello")
    own_nats_server.stop()
    async with AsyncClient(own_nats_server.url) as another:
        with pytest.raises(ServerUnreachableError, match=own_nats_server.url):
            await another.generate("Hello")


async def test_what_is_out_of_range_is_refused_by_name(start: Start, client: AsyncClient) -> None:
    await start()
    with pytest.raises(RequestFailedError) as raised:
        await client.generate("Hello", top_p=7.0)

    assert ("invalid_request", "top_p") == (raised.value.code, raised.value.field)


async def test_a_submission_is_answered_later(start: Start, client: AsyncClient) -> None:
    await start()
    expected = await client.generate(LONG, **STORY)
    keys = [await client.submit(LONG, request_key="story", **STORY) for _ in range(2)]
    answer = await client.result(keys[0], wait_s=20)

    assert keys[0] == keys[1]
    assert answer is not None
    assert essence(expected) == essence(answer)


async def test_threads_and_their_own_client_do_the_same(
    start: Start, client: AsyncClient, own_nats_server: Any
) -> None:
    stack = await start(decode=SLOW)
    expected = await client.generate(LONG, **STORY)

    def use() -> tuple[str, bool]:
        with Client(own_nats_server.url, timeout_s=20) as blocking:
            with blocking.stream(LONG, **STORY) as left:
                next(left)
            return blocking.generate(LONG, **STORY).text, left.is_cancelled

    assert [(expected.text, True)] * 3 == await asyncio.gather(
        *(asyncio.to_thread(use) for _ in range(3))
    )
    await until(lambda: not stack.desk.records)
    await until_empty(stack)
