"""The five services when something ends early: cancels, deadlines, deaths, in every phase."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from slipstream.services.prefill import jobs as prefill_jobs
from slipstream.services.scheduler import watch
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.errors import NoAnswerError
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.kv import Lease, Leased
from slipstream.shared.model.fake_runner import next_token_id
from slipstream.shared.model.tokenizer import Tokenizer

from .service_stack import LONG, Client, ServiceStack, oracle, until, until_empty

pytestmark = pytest.mark.nats

Start = Callable[..., Awaitable[ServiceStack]]


async def occupy(client: Client, stack: ServiceStack) -> "asyncio.Task[Any]":
    """Fill the only seat with a long answer."""
    task = asyncio.create_task(client.ask("Hold", max_tokens=4000, ignore_eos=True, route="local"))
    await until(lambda: any(each.phase == "decoding" for each in stack.desk.records.values()))
    return task


# Options under which a second request stays in a phase, and the code or reason it ends with.
PHASES = {
    "waiting": {"decode": {"num_seats": 1}},
    "prefilling": {"prefill": {"token_budget": 1, "fake": FakeEngineConfig(step_ms=10)}},
    "leasing": {"kv": {"num_blocks": 20}, "decode": {"num_granted_blocks": 1}},
    "handing_over": {},
    "decoding": {"decode": {"fake": FakeEngineConfig(step_ms=20)}},
}


async def in_phase(
    phase: str, stack: ServiceStack, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepare so that the next request stays in a phase."""
    if phase == "waiting":
        await occupy(client, stack)
    if phase == "leasing":
        host = stack.one("kv").host
        host.book.worker_joined(WorkerId("hoarder"), 1)
        lease = Lease(
            request_id=RequestId("hoard"),
            attempt=1,
            worker_id=WorkerId("hoarder"),
            worker_epoch=1,
            num_blocks=18,
            layout=host.layout.fingerprint,
        )
        assert isinstance(host.book.lease(lease, time.monotonic()), Leased)
    if phase == "handing_over":

        async def never(*_: Any) -> None:
            await asyncio.sleep(0.5)
            raise NoAnswerError("answer", 0.5)

        monkeypatch.setattr(prefill_jobs, "hand_over", never)


async def until_in_phase(phase: str, stack: ServiceStack, request_id: RequestId) -> None:
    prefill = stack.one("prefill")._parts.jobs
    await until(lambda: request_id in stack.desk.records)
    record = stack.desk.records[request_id]
    match phase:
        case "waiting":
            await until(lambda: stack.desk.load.waiting() == [record])
        case "leasing":
            await until(lambda: prefill.num_running)
        case "prefilling":
            await until(lambda: any(s.num_computed_tokens for s in prefill._sequences.values()))
        case "handing_over":
            await until(lambda: any(s.first_token for s in prefill._sequences.values()))
        case "decoding":
            await until(lambda: record.phase == "decoding")


@pytest.mark.parametrize("phase", PHASES)
async def test_a_cancel_is_answered_and_frees_in_every_phase(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    stack = await start(**PHASES[phase])
    await in_phase(phase, stack, client, monkeypatch)
    held = set(stack.desk.records)
    async with client.stream(LONG, max_tokens=200, ignore_eos=True, route="remote") as stream:
        request_id = await stream.accepted()
        await until_in_phase(phase, stack, request_id)
        started = time.monotonic()
        await client.cancel(request_id)
        ending = await stream.ending()
        await until(lambda: set(stack.desk.records) == held)
        took_s = time.monotonic() - started

    outcome = ending.code if isinstance(ending, Failed) else ending.finish_reason
    assert ("abort" if phase == "decoding" else "cancelled") == outcome
    assert took_s < 1.0
    assert "ended" == (await client.cancel(request_id)).phase
    for other in held:
        await client.cancel(other)
    stack.one("kv").host.book.worker_gone(WorkerId("hoarder"), 1)
    await until_empty(stack)
    assert 1 == len(stream.endings)


@pytest.mark.parametrize("phase", ["waiting", "prefilling", "leasing", "decoding"])
async def test_a_deadline_ends_a_request_in_every_phase(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    stack = await start(**PHASES[phase])
    await in_phase(phase, stack, client, monkeypatch)
    held = set(stack.desk.records)
    started = time.monotonic()
    async with client.stream(
        LONG, max_tokens=300, ignore_eos=True, route="remote", deadline_ms=600
    ) as stream:
        ending = await stream.ending()

        assert isinstance(ending, Failed)
        assert "deadline_exceeded" == ending.code
        assert 0.5 < time.monotonic() - started < 2
        for other in held:
            await client.cancel(other)
        stack.one("kv").host.book.worker_gone(WorkerId("hoarder"), 1)
        await until_empty(stack)
    assert 1 == len(stream.endings)


async def test_a_killed_prefill_worker_costs_another_attempt(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    stack = await start(prefill={"token_budget": 4, "fake": FakeEngineConfig(step_ms=10)})
    asks = [
        asyncio.create_task(client.ask(f"{i} {LONG}", max_tokens=20, route="remote"))
        for i in range(5)
    ]
    (prefill,) = stack.living("prefill")
    await until(lambda: prefill.service._parts.jobs.num_running == 5)
    await stack.kill(prefill)
    answers = await asyncio.gather(*asks)

    for number, answer in enumerate(answers):
        assert isinstance(answer, Completion), answer
        assert (2, "no_prefill_worker") == (answer.attempt, answer.route_reason)
        expected = oracle(tokenizer.encode(f"{number} {LONG}"), 20)
        assert expected == list(answer.choices[0].token_ids)
    await until_empty(stack)


async def test_a_killed_decode_worker_costs_another_attempt(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    """Plain requests, some with tokens already: nobody has seen any, so all start anew."""
    stack = await start(decode={"fake": FakeEngineConfig(step_ms=10)})
    asks = [
        asyncio.create_task(client.ask(f"{i} {LONG}", max_tokens=60, ignore_eos=True))
        for i in range(5)
    ]
    (decode,) = stack.living("decode")
    await until(lambda: sum(len(each.token_ids) > 3 for each in stack.desk.records.values()) == 5)
    await stack.add("decode")
    await stack.kill(decode)
    answers = await asyncio.gather(*asks)

    for number, answer in enumerate(answers):
        assert isinstance(answer, Completion), answer
        expected = tokenizer.encode(f"{number} {LONG}")
        for _ in range(60):
            expected.append(next_token_id(expected))
        assert expected[-60:] == list(answer.choices[0].token_ids)
    await until_empty(stack)


async def test_a_restart_of_the_kv_manager_costs_another_attempt(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    stack = await start(decode={"fake": FakeEngineConfig(step_ms=10)})
    ask = asyncio.create_task(client.ask(LONG, max_tokens=60, ignore_eos=True))
    await until(lambda: any(each.token_ids for each in stack.desk.records.values()))
    workers = [*stack.living("prefill"), *stack.living("decode")]
    old = {path.name for path in stack.one("kv").host.arena.path.parent.glob("arena.*")}
    await stack.kill(*stack.living("kv"))
    await asyncio.wait_for(asyncio.wait([worker.waiting for worker in workers]), 5)
    for worker in workers:
        await stack.kill(worker)
    await stack.start("kv", "prefill", "decode")
    answer = await ask

    assert isinstance(answer, Completion), answer
    expected = tokenizer.encode(LONG)
    for _ in range(60):
        expected.append(next_token_id(expected))
    assert expected[-60:] == list(answer.choices[0].token_ids)
    assert not old & {path.name for path in stack.one("kv").host.arena.path.parent.iterdir()}
    await until_empty(stack)


async def test_without_a_decode_worker_a_request_fails_after_a_while(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "NO_WORKER_S", 0.5)
    stack = await start("scheduler", "kv", "prefill")
    answer = await client.ask(LONG)

    assert isinstance(answer, Failed)
    assert ("no_workers", 1000) == (answer.code, answer.retry_after_ms)
    assert not stack.desk.records


async def test_a_second_request_after_idleness_finds_all_blocks(
    start: Start, client: Client
) -> None:
    """Blocks granted ahead of need go back: a prompt as large as the pool can always be served."""
    stack = await start(kv={"num_blocks": 12}, scheduler={"route": "remote"})
    for _ in range(3):
        answer = await client.ask("x" * 300, max_tokens=40, ignore_eos=True)

        assert isinstance(answer, Completion), answer
    await until_empty(stack)


async def test_an_idle_stack_stops_within_a_moment(start: Start) -> None:
    stack = await start()
    started = time.monotonic()
    await stack.stop()

    assert time.monotonic() - started < 3
