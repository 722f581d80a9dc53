"""
Prefill on one host, decode on another: KV travels, and the fake engine checks each slot it reads.

Two KV managers with arenas of their own on one machine; test_host_network.py, end to end, puts a
network between them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slipstream.shared.bus.endpoint import call_kv
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.kv.transfer.plane import TransferBrokenError
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.kv import Audit, Audited, Pull
from slipstream.shared.model.tokenizer import Tokenizer

from .service_stack import Client, Process, ServiceStack, is_idle, oracle, until

pytestmark = pytest.mark.nats

LONG = "Ride behind me and rest a little while you can, for the wind is strong today. " * 4
SLOW = {"token_budget": 32, "fake": FakeEngineConfig(step_ms=10)}


@dataclass
class Hosts:
    """A prefill worker on the far host, a decode worker on the near one."""

    stack: ServiceStack
    near: Process
    far: Process
    pulls: list[Pull] = field(default_factory=list)
    is_cut: bool = False
    is_slow: bool = False

    def spy(self) -> None:
        """Note what the near host pulls; cut or slow the link when told."""
        transfers = self.near.service.host.transfers
        for plane in transfers._planes.values():
            plane.fetch = self._spied(plane.fetch)
        pull = transfers.pull

        async def noted(message: Pull) -> Any:
            self.pulls.append(message)
            return await pull(message)

        transfers.pull = noted

    def _spied(self, fetch: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def fetch_or_not(*arguments: Any) -> Any:
            if self.is_cut:
                raise TransferBrokenError("the link is cut")
            if self.is_slow:
                await asyncio.sleep(0.2)
            return await fetch(*arguments)

        return fetch_or_not

    async def audits(self) -> list[Audited]:
        """Return the books of both hosts that live."""
        living = [each for each in (self.near, self.far) if not each.is_killed]
        return [
            await call_kv(each.buses[0], each.service.host.host_id, Audit(with_leases=True))
            for each in living
        ]

    async def until_idle(self) -> None:
        """Return when nobody holds a block on either host; the books are right."""
        await until(lambda: not self.stack.desk.records)
        async with asyncio.timeout(15):
            audits = await self.audits()
            while not all(is_idle(each) for each in audits):
                await asyncio.sleep(0.02)
                audits = await self.audits()
        assert [] == [problem for each in audits for problem in each.problems]


@pytest.fixture
def planes() -> str:
    return "tcp"


@pytest.fixture
async def hosts(nats_server: Any, tmp_path: Path, planes: str) -> AsyncIterator[Hosts]:
    stack = ServiceStack(
        nats_server.url, tmp_path, kv={"transfer_planes": planes, "lease_ms": 3000}, prefill=SLOW
    )
    await stack.add("scheduler")
    near, far = await stack.add("kv", "near"), await stack.add("kv", "far")
    await stack.add("decode", "near")
    await stack.add("prefill", "far")
    made = Hosts(stack, near, far)
    made.spy()
    yield made
    await stack.stop()


@pytest.mark.parametrize("planes", ["tcp", "nats", "nats,tcp"])
async def test_kv_travels_while_the_prompt_is_computed_and_the_tokens_are_right(
    hosts: Hosts, client: Client, tokenizer: Tokenizer, planes: str
) -> None:
    answer = await client.ask(LONG, max_tokens=40, route="remote", ignore_eos=True)

    assert isinstance(answer, Completion), answer
    prompt = tokenizer.encode(LONG)
    assert oracle(prompt, 40, ignore_eos=True) == list(answer.choices[0].token_ids)
    assert (1, "remote", 0) == (answer.attempt, answer.route, answer.usage.num_cached_tokens)
    num_blocks = -(-len(prompt) // 32)
    fetched = [
        each.first_block_idx + number
        for each in hosts.pulls
        for number in range(len(each.source.block_ids))
    ]
    assert list(range(num_blocks)) == fetched, "each block once, in order"
    assert len(hosts.pulls) >= num_blocks // 2, "while later ones were computed"
    await hosts.until_idle()


async def test_what_a_host_has_already_does_not_travel(hosts: Hosts, client: Client) -> None:
    first = await client.ask(LONG, max_tokens=8, route="remote", ignore_eos=True)
    hosts.pulls.clear()
    again = await client.ask(LONG + "On!", max_tokens=8, route="remote", ignore_eos=True)

    assert isinstance(first, Completion)
    assert isinstance(again, Completion)
    num_cached = first.usage.num_prompt_tokens // 32
    assert {num_cached} == {each.first_block_idx for each in hosts.pulls}, "the last block alone"
    assert again.usage.num_cached_tokens >= 32 * num_cached, "the far host found its own"
    await hosts.until_idle()


async def test_a_link_that_is_cut_costs_an_attempt_and_leaks_nothing(
    hosts: Hosts, client: Client, tokenizer: Tokenizer
) -> None:
    """The next one doesn't go to the host that can't be reached: the decode worker computes it."""
    hosts.is_cut = True
    answer = await client.ask(LONG, max_tokens=8, route="remote", ignore_eos=True)

    assert isinstance(answer, Completion), answer
    assert (2, "no_prefill_worker") == (answer.attempt, answer.route_reason)
    assert oracle(tokenizer.encode(LONG), 8, ignore_eos=True) == list(answer.choices[0].token_ids)
    await hosts.until_idle()


async def test_a_cancel_in_the_middle_of_a_transfer_leaves_nothing(
    hosts: Hosts, client: Client
) -> None:
    hosts.is_slow = True
    async with client.stream(LONG, max_tokens=8, route="remote") as stream:
        request_id = await stream.accepted()
        await until(lambda: hosts.pulls)
        await client.cancel(request_id)
        await stream.ending()
    await hosts.until_idle()


@pytest.mark.parametrize("role", ["decode", "prefill", "kv"])
async def test_whoever_dies_in_the_middle_of_a_transfer_leaves_nothing(
    hosts: Hosts, client: Client, role: str
) -> None:
    """The far host's manager and workers end together, as a host does."""
    hosts.is_slow = True
    asking = [
        asyncio.create_task(
            client.ask(f"{number} {LONG}", max_tokens=8, route="remote", deadline_ms=4000)
        )
        for number in range(3)
    ]
    await until(lambda: hosts.pulls)
    for each in ["prefill", "kv"] if role == "kv" else [role]:
        await hosts.stack.kill(hosts.far if each == "kv" else hosts.stack.living(each)[0])
    if role == "decode":
        await hosts.stack.add("decode", "near")
    answers = await asyncio.gather(*asking)

    assert all(isinstance(each, Completion | Failed) for each in answers)
    await hosts.until_idle()
