"""A soup of random requests on pools that are far too small, looked at from outside and inside."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from slipstream.services.decode import publisher
from slipstream.services.scheduler import front
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import DRAFT
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.ids import RequestId
from tests.end_to_end import client
from tests.soup import trouble
from tests.soup.again import compare_alone
from tests.soup.checks import Checker
from tests.soup.orders import Menu, Sizes
from tests.soup.plain import PlainModel
from tests.soup.serving import Table

from .holdings import held
from .service_stack import ALL, ServiceStack, is_idle, until

pytestmark = [pytest.mark.nats, pytest.mark.timeout(240)]

Start = Callable[..., Awaitable[ServiceStack]]
Settings = dict[str, Any]  # Any: options of every type

_LATE, _MAX_LATE_S = 0.1, 0.05
_DRAFTS = DRAFT.wildcard.removesuffix("*")  # of these a step waits for none
_NUM_TOGETHER = 24
_NUM_ALONE = 40
_SETTLE_S = 30.0
_NO_COSTS = FakeEngineConfig(step_ms=0.0, row_us=0.0, context_token_ns=0.0)


@dataclass(frozen=True)
class Kitchen:
    """Which services there are, and how large requests may be."""

    sizes: Sizes
    num_orders: int
    roles: tuple[str, ...] = ALL
    worker: Settings = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Settings]:
        """The options by role: leases are renewed meanwhile, all hashes of blocks collide."""
        kv = {"num_blocks": self.sizes.num_blocks, "lease_ms": 9000, "block_hash_bits": 0}
        costs = FakeEngineConfig(step_ms=0.5, row_us=0.0, context_token_ns=0.0)
        decode = {**self.worker, "num_granted_blocks": 2}
        return {"kv": kv, "every": {"fake": costs}, "prefill": self.worker, "decode": decode}


# Without a draft worker they look drafts up themselves.
_TWO_WORKERS = ("scheduler", "kv", "prefill", "prefill", "decode", "decode")
_KITCHENS = {
    # One request may want every block there is.
    "twelve blocks": Kitchen(
        Sizes(num_blocks=12, max_num_tokens=384, max_num_output=150),
        120,
        worker={"token_budget": 48, "num_seats": 8},
    ),
    # Two decode workers can't take blocks from each other: each must be able to finish one.
    "two workers": Kitchen(
        Sizes(num_blocks=20, max_num_tokens=192),
        120,
        _TWO_WORKERS,
        worker={"token_budget": 16, "num_seats": 3},
    ),
    "whole contexts": Kitchen(Sizes(num_blocks=256, max_num_tokens=8192), 40),
}


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids that requests got, in order: strangers can tell those that are still to come."""
    given: list[str] = []

    def new_id() -> RequestId:
        given.append(_id(len(given)))
        return RequestId(given[-1])

    monkeypatch.setattr(front, "new_request_id", new_id)
    return given


@pytest.fixture(autouse=True)
def slow_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some messages between services take a while, so that others overtake them."""
    random, request = Random(0), NatsBus.request

    async def request_late(bus: NatsBus, subject: str, payload: bytes, **options: Any) -> Incoming:
        # Any: as the bus has it
        if random.random() < _LATE and not subject.startswith(_DRAFTS):
            await asyncio.sleep(random.uniform(0.0, _MAX_LATE_S))
        return await request(bus, subject, payload, **options)

    monkeypatch.setattr(NatsBus, "request", request_late)


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("name", _KITCHENS)
async def test_everybody_is_served_once_and_right_and_nothing_is_left(
    start: Start,
    nats_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ids: list[str],
    name: str,
    seed: int,
) -> None:
    # Who left is noticed before the test is over.
    monkeypatch.setattr(publisher, "KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(publisher, "GONE_AFTER_S", 0.5)
    kitchen = _KITCHENS[name]
    stack = await start(*kitchen.roles, **kitchen.settings)

    def draw_id(random: Random) -> str:
        return _id(max(0, len(ids) + random.randint(-40, 10))) + random.choice(("", "", "c0", "c1"))

    async with client.connected(nats_server.url) as asking:
        table = Table(asking, seed, _NUM_TOGETHER)
        async with trouble.cancelling(table, seed, draw_id), trouble.repeating(asking, seed):
            await table.serve(Menu(seed, kitchen.sizes).draw(kitchen.num_orders))
        with contextlib.suppress(TimeoutError):
            await until(lambda: not held(stack), _SETTLE_S)
        audit = await stack.audit()
        await table.close()

    assert {} == held(stack), f"seed {seed}"
    assert [] == audit.problems
    assert is_idle(audit)
    await stack.stop()
    checker = Checker(PlainModel(tmp_path / "cache"), table, seed, kitchen.sizes.num_blocks)
    await checker.check()
    assert checker.num_whole > kitchen.num_orders / 10
    await start(kv={"num_blocks": 1024}, decode={"speculation": "off"}, every={"fake": _NO_COSTS})
    async with client.connected(nats_server.url) as asking:
        assert await compare_alone(asking, table.served, seed, _NUM_ALONE) > 0


def _id(number: int) -> str:
    return f"soup{number:06}"
