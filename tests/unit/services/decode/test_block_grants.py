"""Blocks ahead of need: taken at once, refilled beside the steps, given back when idle."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipstream.services.decode import grants as grants_module
from slipstream.services.decode.grants import BlockGrants
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import call_kv, serve
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import KV
from slipstream.shared.ids import HostId, WorkerId
from slipstream.shared.messages.kv import Blocks, Grant, Granted
from slipstream.shared.messages.packed import PackedInts

HOST = HostId("h")


class Manager:
    """Has so many blocks."""

    def __init__(self) -> None:
        self.num_free = 100
        self.heard: list[Grant] = []
        self.is_silent = False

    async def answer(self, message: Any, _incoming: Incoming) -> Granted | None:
        self.heard.append(message)
        if self.is_silent:
            return None
        num_blocks = min(message.num_blocks, self.num_free)
        self.num_free -= num_blocks
        first = 10 * len(self.heard)
        ids = PackedInts(range(first, first + num_blocks))
        return Granted(
            blocks=Blocks(ids, PackedInts([1] * num_blocks)), num_free_blocks=self.num_free
        )


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
async def grants(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BlockGrants]:
    async def impatient(bus: Any, host_id: HostId, message: Any) -> Any:
        return await call_kv(bus, host_id, message, timeout_s=0.05)

    monkeypatch.setattr(grants_module, "call_kv", impatient)
    bus = MemoryBus()
    await serve(bus, KV.subject(host_id=HOST, verb="grant"), KV, manager.answer)
    made = BlockGrants(bus, HOST, (WorkerId("w"), 1), 4)
    loop = asyncio.create_task(made.refill_loop())
    yield made
    loop.cancel()


async def filled(grants: BlockGrants, num_blocks: int = 4) -> None:
    grants.prepare()
    async with asyncio.timeout(5):
        while grants.num_blocks < num_blocks:
            await grants.wait_changed(0.05)


async def test_too_few_blocks_are_none_and_more_are_asked_for(grants: BlockGrants) -> None:
    grants.prepare()
    assert grants.take(1) is None
    await filled(grants)

    taken = grants.take(3)
    assert taken is not None
    assert (3, 1) == (len(taken), grants.num_blocks)
    await filled(grants)


async def test_nothing_is_asked_for_while_there_is_enough(
    grants: BlockGrants, manager: Manager
) -> None:
    await filled(grants)
    grants.take(1)
    await grants.wait_changed(0.05)

    assert 1 == len(manager.heard)


async def test_an_empty_pool_shows(grants: BlockGrants, manager: Manager) -> None:
    manager.num_free = 0
    grants.prepare()
    await grants.wait_changed(5)
    assert grants.is_exhausted
    manager.num_free = 9
    grants.take(1)
    await filled(grants)

    assert not grants.is_exhausted


async def test_no_answer_is_not_an_empty_pool(grants: BlockGrants, manager: Manager) -> None:
    """Or somebody would be preempted because of a slow network."""
    manager.is_silent = True
    grants.prepare()
    await grants.wait_changed(5)

    assert not grants.is_exhausted
    manager.is_silent = False
    await filled(grants)


async def test_idle_blocks_go_back(grants: BlockGrants, manager: Manager) -> None:
    await filled(grants)
    await grants.give_back()

    assert (0, 0) == (grants.num_blocks, manager.heard[-1].num_blocks)
    assert [10, 11, 12, 13] == list(manager.heard[-1].returned.block_ids)
    assert grants.take(1) is None


async def test_blocks_that_come_when_all_is_over_go_back_too(
    grants: BlockGrants, manager: Manager
) -> None:
    grants.prepare()
    await asyncio.sleep(0)
    await grants.give_back()
    await grants.wait_changed(0.5)

    assert 0 == grants.num_blocks
    assert sum(len(each.returned.block_ids) for each in manager.heard) == 100 - manager.num_free


async def test_a_return_that_was_not_answered_is_repeated_and_never_used(
    grants: BlockGrants, manager: Manager
) -> None:
    await filled(grants)
    manager.is_silent = True
    await grants.give_back()
    assert 0 == grants.num_blocks
    manager.is_silent = False
    await filled(grants)

    unheard, again, new = manager.heard[-3:]
    assert unheard == again, "what it brought is known only by asking again"
    assert [10, 11, 12, 13] == list(again.returned.block_ids)
    assert (again.number + 1, []) == (new.number, list(new.returned.block_ids))
    assert 40 == (grants.take(1) or [(0, 0)])[0][0]
    await grants.give_back()
    assert [41, 42, 43] == list(manager.heard[-1].returned.block_ids)


async def test_what_was_exhausted_is_asked_for_again_once_blocks_are_expected(
    grants: BlockGrants, manager: Manager
) -> None:
    manager.num_free = 0
    grants.prepare()
    await grants.wait_changed(1)
    assert grants.is_exhausted

    manager.num_free = 50
    grants.expect()

    assert not grants.is_exhausted
    await grants.wait_changed(1)
    assert 4 == grants.num_blocks
