"""Requests go where their prefix is, on real NATS; what is believed wrongly costs only time."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from slipstream.shared.bus.subjects import EVENT
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.ids import HostId
from slipstream.shared.kv.layout import BLOCK_SIZE
from slipstream.shared.messages.generate import Completion
from slipstream.shared.scheduling.prefix_map import PrefixMap

from .service_stack import Client, Process, ServiceStack, oracle, until, until_empty

pytestmark = pytest.mark.nats


def prompt_of(seed: int, num_tokens: int = 500) -> list[int]:
    return random.Random(seed).choices(range(3, 256), k=num_tokens)


async def ask(client: Client, token_ids: list[int], **fields: Any) -> Completion:
    """Return the answer to a prompt of tokens, which must be right."""
    answer = await client.ask(
        "", prompt_token_ids=token_ids, max_tokens=8, route="auto", ignore_eos=True, **fields
    )
    assert isinstance(answer, Completion), answer
    assert oracle(token_ids, 8, ignore_eos=True) == list(answer.choices[0].token_ids)
    return answer


def map_of(stack: ServiceStack) -> PrefixMap:
    prefixes: PrefixMap = stack.desk.load.prefixes
    return prefixes


def num_known(stack: ServiceStack) -> Mapping[HostId, int]:
    return map_of(stack).num_blocks()


def held_by(kv: Process) -> set[bytes]:
    index = kv.service.host.book.prefixes.index
    return {*index.hashes(1, kv.service.host.book.pool.num_blocks + 1)}


def is_as_it_is(stack: ServiceStack, kv: Process) -> bool:
    """Tell whether the scheduler knows all that a manager holds, and no more."""
    host = map_of(stack)._hosts.get(kv.service.host.host_id)
    return host is not None and not host.is_stale and host.known == held_by(kv)


@pytest.fixture
async def stack(nats_server: Any, tmp_path: Path) -> AsyncIterator[ServiceStack]:
    made = ServiceStack(nats_server.url, tmp_path)
    yield made
    await made.stop()


@pytest.mark.parametrize("token_budget", [200, 300])
async def test_all_of_a_prompt_is_found_again_that_was_computed_in_quick_steps(
    stack: ServiceStack, client: Client, token_budget: int
) -> None:
    """The last steps end while the commit of one before waits for its answer."""
    stack._settings["prefill"] = {"token_budget": token_budget}
    await stack.start("scheduler", "kv", "prefill", "decode")
    await ask(client, prompt_of(1))
    (kv,) = stack.living("kv")

    await until(lambda: len(held_by(kv)) >= len(prompt_of(1)) // BLOCK_SIZE)


async def test_a_known_prompt_stays_on_the_decode_worker_and_a_new_one_does_not(
    stack: ServiceStack, client: Client
) -> None:
    await stack.start("scheduler", "kv", "prefill", "decode")
    first = await ask(client, prompt_of(1))
    (kv,) = stack.living("kv")
    num_whole = len(prompt_of(1)) // BLOCK_SIZE
    await until(lambda: len(held_by(kv)) >= num_whole and is_as_it_is(stack, kv))
    again = await ask(client, prompt_of(1))
    other = await ask(client, prompt_of(2))
    salted = await ask(client, prompt_of(1), cache_salt="mine")

    assert ("remote", "long_prompt", 0) == (
        first.route,
        first.route_reason,
        first.usage.num_cached_tokens,
    )
    assert ("local", "cached_prompt") == (again.route, again.route_reason)
    assert again.usage.num_cached_tokens > 400
    assert ["long_prompt"] * 2 == [other.route_reason, salted.route_reason]
    watch = stack.one("scheduler")._front._prefixes
    assert {} == watch._asked_at, "the scheduler was there from the first event on"
    await until_empty(stack)


async def test_without_a_prefix_cache_nothing_is_told_and_placement_is_as_before(
    stack: ServiceStack, client: Client
) -> None:
    stack._settings["kv"] = {"is_prefix_cache_on": False}
    await stack.start("scheduler", "kv", "prefill", "decode")
    answers = [await ask(client, prompt_of(1)) for _ in range(2)]
    await asyncio.sleep(1.2)  # longer than a manager is quiet

    assert ["long_prompt"] * 2 == [each.route_reason for each in answers]
    assert {} == num_known(stack)


async def test_a_scheduler_that_comes_late_and_loses_events_sees_all_soon(
    stack: ServiceStack, client: Client
) -> None:
    """A new scheduler asks; later every second event is lost, and then the last ones."""
    await stack.start("scheduler", "kv", "decode")
    await ask(client, prompt_of(1))
    (old,), (kv,) = stack.living("scheduler"), stack.living("kv")
    await until(lambda: is_as_it_is(stack, kv))
    await stack.kill(old)
    await stack.add("scheduler")
    await until(lambda: is_as_it_is(stack, kv))

    (bus,) = kv.buses
    publish, events = bus.publish, []

    async def lossy(subject: str, payload: bytes, **fields: Any) -> None:
        if subject == EVENT.subject(role="kv"):
            events.append(payload)
            if len(events) % 2:
                return
        await publish(subject, payload, **fields)

    bus.publish = lossy  # type: ignore[method-assign] # a link that loses
    await until(lambda: stack.desk.load.fleet.num_open("decode"))
    for seed in range(2, 9):  # more than the pool holds, so that blocks go, too
        await ask(client, prompt_of(seed, 1500))
        await asyncio.sleep(0.12)
    bus.publish = publish  # type: ignore[method-assign] # it is well again
    assert len(events) > 4
    await until(lambda: is_as_it_is(stack, kv))
    again = await ask(client, prompt_of(8, 1500))

    assert again.usage.num_cached_tokens > 1400
    await until_empty(stack)


async def two_hosts(stack: ServiceStack) -> dict[HostId, Process]:
    """
    Start a scheduler and two hosts with a decode worker each; return their managers.

    Their engines compute 1000 tokens of prompts a second: were they faster, no prefix would be
    worth the blocks by which a host still looked busier than the other.
    """
    stack._settings["decode"] = {"fake": FakeEngineConfig(step_ms=0.2, row_us=1000.0)}
    await stack.add("scheduler")
    managers = [await stack.add("kv", name) for name in ("one", "two")]
    for name in ("one", "two"):
        await stack.add("decode", name)
    return {each.service.host.host_id: each for each in managers}


def host_of(stack: ServiceStack, answer: Completion) -> HostId:
    """Return the host of the decode worker that a request had."""
    worker_id = stack.desk.last_holder(answer.request_id)
    host_id: HostId = stack.desk.load.fleet.view(worker_id).host_id
    return host_id


async def test_a_conversation_goes_back_to_its_host_and_elsewhere_once_that_is_gone(
    stack: ServiceStack, client: Client
) -> None:
    managers = await two_hosts(stack)
    conversations = {seed: prompt_of(seed) for seed in range(3)}
    homes = {}
    for seed, token_ids in conversations.items():
        # At the same time, so that the first turns are spread over the hosts.
        filler = asyncio.create_task(ask(client, prompt_of(100 + seed, 600)))
        answer = await ask(client, token_ids)
        await filler
        homes[seed] = host_of(stack, answer)
        token_ids += [*answer.choices[0].token_ids, *prompt_of(200 + seed, 20)]
    await until(lambda: all(is_as_it_is(stack, each) for each in managers.values()))
    for turn in range(3):
        for seed, token_ids in conversations.items():
            await until(lambda: not stack.desk.records)
            answer = await ask(client, token_ids)
            assert homes[seed] == host_of(stack, answer), f"turn {turn}, both hosts are idle"
            assert answer.usage.num_cached_tokens > 400
            token_ids += [*answer.choices[0].token_ids, *prompt_of(turn, 20)]

    gone = homes[0]
    (decode,) = [
        each for each in stack.living("decode") if each.service._parts.host.host_id == gone
    ]
    await stack.kill(managers[gone])
    await asyncio.wait_for(decode.waiting, 5)  # the process ends with its manager
    await stack.kill(decode)
    answers = await asyncio.gather(*(ask(client, each) for each in conversations.values()))
    await until(lambda: gone not in num_known(stack))

    assert {*managers} - {gone} == {host_of(stack, each) for each in answers}


async def test_a_wrong_hint_costs_time_and_no_correctness(
    stack: ServiceStack, client: Client
) -> None:
    """The far host is believed to hold what it doesn't, as after events were lost."""
    managers = await two_hosts(stack)
    token_ids = prompt_of(1)
    first = await ask(client, token_ids)
    home = host_of(stack, first)
    (far,) = managers.keys() - {home}
    await until(lambda: is_as_it_is(stack, managers[home]) and far in num_known(stack))
    known = map_of(stack)._hosts
    known[far].known = known[home].known
    known[home].known = set()
    map_of(stack).version += 1
    await until(lambda: not stack.desk.records)
    again = await ask(client, token_ids)

    assert (far, 0) == (host_of(stack, again), again.usage.num_cached_tokens)
    assert again.attempt == 1
