"""The five services together on real NATS: right tokens by every way, nothing lost or kept."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.services.decode import publisher
from slipstream.services.prefill import jobs as prefill_jobs
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import DECODE, PREFILL
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion, Finished
from slipstream.shared.model.tokenizer import Tokenizer

from .service_stack import LONG, Client, ServiceStack, oracle, until, until_empty

pytestmark = pytest.mark.nats

Start = Callable[..., Awaitable[ServiceStack]]


@pytest.mark.parametrize("route", ["remote", "local", "auto"])
async def test_a_request_is_answered_with_the_tokens_of_the_model(
    start: Start, client: Client, tokenizer: Tokenizer, route: str
) -> None:
    stack = await start()
    answer = await client.ask(LONG, max_tokens=80, route=route)

    assert isinstance(answer, Completion)
    expected = oracle(tokenizer.encode(LONG), 80)
    assert expected == list(answer.choices[0].token_ids)
    assert ("local" if route == "local" else "remote") == answer.route
    await until_empty(stack)


async def test_auto_sends_short_prompts_to_the_decode_worker(start: Start, client: Client) -> None:
    await start()
    answer = await client.ask("Hello", max_tokens=4, route="auto")

    assert isinstance(answer, Completion)
    assert ("local", "short_prompt") == (answer.route, answer.route_reason)


@pytest.mark.parametrize("route", ["remote", "local"])
async def test_frames_joined_are_the_plain_answer(start: Start, client: Client, route: str) -> None:
    stack = await start()
    fields = {"max_tokens": 60, "route": route, "temperature": 1, "seed": 7, "stop": "zz"}
    plain = await client.ask(LONG, **fields)
    async with client.stream(LONG, **fields) as stream:
        ending = await stream.ending()

    assert isinstance(plain, Completion)
    assert isinstance(ending, Finished)
    choice = plain.choices[0]
    assert (choice.text, list(choice.token_ids)) == (stream.text, stream.token_ids)
    assert (choice.finish_reason, len(stream.text)) == (ending.finish_reason, ending.text_length)
    await until_empty(stack)


async def test_decode_reads_what_prefill_wrote(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte changed in the arena between the two is noticed, so the bytes do come from there."""
    stack = await start()
    original = prefill_jobs.hand_over

    async def corrupt(bus: Any, tracer: Any, job: Any, decode: Any, deadline: Any) -> Any:
        host = stack.one("kv").host
        first = decode.hand_over.block_ids[0] * host.arena.block_bytes
        host.arena.blocks[first] ^= 1
        return await original(bus, tracer, job, decode, deadline)

    monkeypatch.setattr(prefill_jobs, "hand_over", corrupt)
    answer = await client.ask(LONG, max_tokens=20, route="remote")

    assert isinstance(answer, Failed)
    assert "kv_mismatch" == answer.code
    monkeypatch.undo()
    # Under a salt of its own: the block that was tampered with is still cached.
    other = await client.ask(LONG, max_tokens=20, route="remote", cache_salt="other")
    assert isinstance(other, Completion)
    await until_empty(stack)


async def test_200_mixed_requests_leave_nothing_behind(start: Start, client: Client) -> None:
    stack = await start(scheduler={"route": "remote"}, kv={"num_blocks": 96})

    async def one(number: int) -> str:
        match number % 8:
            case 0:
                answer = await client.ask(LONG, max_tokens=-1)
            case 1:
                answer = await client.ask("", max_tokens=3)
            case 2 | 3:
                async with client.stream(LONG * (1 + number % 3), max_tokens=150) as stream:
                    await client.cancel(await stream.accepted())
                    ending = await stream.ending()
                    assert 1 == len(stream.endings)
                return getattr(ending, "finish_reason", None) or ending.code
            case 4:
                answer = await client.ask(LONG, max_tokens=1)
            case 5:
                answer = await client.ask("Hello " * (number % 20), max_tokens=40, route="local")
            case _:
                answer = await client.ask(f"{number} {LONG}", max_tokens=number % 90 + 1, seed=1)
        return answer.code if isinstance(answer, Failed) else answer.choices[0].finish_reason

    outcomes = await asyncio.gather(*(one(number) for number in range(200)))

    allowed = {"invalid_request", "abort", "cancelled", "stop", "length"}
    assert allowed >= set(outcomes), set(outcomes) - allowed
    assert 50 == outcomes.count("invalid_request")
    await until_empty(stack)
    assert not stack.one("scheduler")._front.watch._fleet._assigned


async def test_tokens_are_the_same_when_blocks_run_out(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    """Six answers that together need twice the pool: some give way and are computed anew."""
    stack = await start(kv={"num_blocks": 14}, scheduler={"route": "remote"})
    prompts = [f"{number}: {LONG[:30]}" for number in range(6)]
    with capture_logs() as lines:
        answers = await asyncio.gather(
            *(client.ask(prompt, max_tokens=120, ignore_eos=True) for prompt in prompts)
        )

    assert all(isinstance(answer, Completion) for answer in answers), answers
    for prompt, answer in zip(prompts, answers, strict=True):
        assert isinstance(answer, Completion)
        expected = oracle(tokenizer.encode(prompt), 120, ignore_eos=True)
        assert expected == list(answer.choices[0].token_ids)
    assert sum(a.usage.num_preemptions for a in answers if isinstance(a, Completion)) > 0
    traces = {a.request_id: a.trace_id for a in answers if isinstance(a, Completion)}
    preempted = [line for line in lines if line["event"] == "preempted"]
    assert preempted
    assert all(traces[line["request_id"]] == line["trace_id"] for line in preempted)
    await until_empty(stack)


async def test_sequences_decode_in_one_packed_forward_a_step(start: Start, client: Client) -> None:
    stack = await start(
        decode={"speculation": "off"}, every={"fake": FakeEngineConfig(step_ms=3.0)}
    )
    runner = stack.one("decode")._parts.host.engine.runner
    answers = await asyncio.gather(
        *(
            client.ask(f"{number} {LONG}", max_tokens=64, ignore_eos=True, route="remote")
            for number in range(16)
        )
    )

    assert all(isinstance(answer, Completion) for answer in answers)
    assert runner.num_forwards < 2.5 * 64, "not 16 times 64"


async def test_jobs_delivered_twice_change_nothing(
    start: Start, client: Client, nats_bus: NatsBus, tokenizer: Tokenizer
) -> None:
    stack = await start()
    seen: set[bytes] = set()

    async def repeat(incoming: Incoming) -> None:
        if incoming.payload in seen or b"_job" not in incoming.payload:
            return
        seen.add(incoming.payload)
        for _ in range(3):
            await nats_bus.request(incoming.subject, incoming.payload, timeout_s=2)
            await asyncio.sleep(0.05)
        repeated.append(incoming.subject)

    repeated: list[str] = []
    taps = [await nats_bus.subscribe(topic.wildcard, repeat) for topic in (PREFILL, DECODE)]
    async with client.stream(LONG, max_tokens=80, ignore_eos=True, route="remote") as stream:
        await stream.ending()
        await until(lambda: len(repeated) == 2)
        await until_empty(stack)

    for tap in taps:
        await tap.stop()
    assert 1 == len(stream.endings)
    assert 80 == len(stream.token_ids)
    assert 0 == stack.one("decode")._parts.jobs._book.num_held


async def test_a_client_that_vanishes_is_cancelled(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(publisher, "GONE_AFTER_S", 0.5)
    stack = await start(every={"fake": FakeEngineConfig(step_ms=20)})
    async with client.stream(LONG, max_tokens=2000, ignore_eos=True) as stream:
        await stream.until(lambda: stream.token_ids)

    await until_empty(stack, 5)
