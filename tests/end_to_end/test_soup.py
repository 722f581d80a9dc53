"""A soup of thousands of random requests, on stacks of real processes with far too few blocks."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.soup import trouble
from tests.soup.again import compare_alone
from tests.soup.checks import Checker
from tests.soup.orders import Menu, Sizes
from tests.soup.plain import PlainModel
from tests.soup.serving import Table

from . import client, conftest, scrape, stack

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(900)]

_FAKE = ["--test-mode", "--engine", "fake"]
_HELD = ("num_leases", "num_leased", "num_committed", "num_quarantined", "num_granted")
_NUM_TOGETHER = 32
_SETTLE_S = 30.0


@dataclass(frozen=True)
class Kitchen:
    """A stack, and how large requests are."""

    sizes: Sizes
    num_orders: int = 600
    num_workers: int = 1  # of prefill and decode each
    variables: dict[str, object] = field(default_factory=dict)

    def start(self, start_stack: conftest.StartStack) -> stack.Stack:
        """Start the stack."""
        numbers = ["--prefill", str(self.num_workers), "--decode", str(self.num_workers)]
        variables = {"KV_BLOCKS": self.sizes.num_blocks, **self.variables}
        return start_stack(
            [*_FAKE, *numbers, "--metrics-port", "0"],
            {f"SLIPSTREAM_{name}": str(value) for name, value in variables.items()},
        )

    @property
    def services(self) -> list[str]:
        """The names of the processes."""
        numbers = [f"-{n + 1}" for n in range(self.num_workers)] if self.num_workers > 1 else [""]
        workers = [f"{role}{number}" for role in ("prefill", "decode") for number in numbers]
        return ["scheduler", "kv", "draft", *workers]


_KITCHENS = {
    # One request may want every block there is; all that is granted ahead is missing elsewhere.
    "twelve blocks": Kitchen(
        Sizes(num_blocks=12, max_num_tokens=384, max_num_output=150),
        variables={"NUM_GRANTED_BLOCKS": 2, "TOKEN_BUDGET": 48, "SEATS": 12},
    ),
    # Two decode workers can't take blocks from each other: each must be able to finish one.
    "two workers": Kitchen(
        Sizes(num_blocks=20, max_num_tokens=192),
        num_workers=2,
        variables={"NUM_GRANTED_BLOCKS": 2, "SEATS": 4, "BLOCK_HASH_BITS": 0},
    ),
    # Chunks of half a block, slow steps, and leases that are renewed all the time.
    "slow chunks": Kitchen(
        Sizes(num_blocks=24, max_num_tokens=600),
        variables={"TOKEN_BUDGET": 16, "FAKE_STEP_MS": 3, "LEASE_MS": 6000},
    ),
    # As many drafts as can be, none of them late; colliding hashes.
    "drafts": Kitchen(
        Sizes(num_blocks=64, max_num_tokens=500, max_num_output=200),
        variables={
            "MIN_NGRAM": 1,
            "MAX_NUM_DRAFT_TOKENS": 6,
            "DRAFT_BUDGET_MS": 1000,
            "BLOCK_HASH_BITS": 4,
        },
    ),
    "whole contexts": Kitchen(Sizes(num_blocks=256, max_num_tokens=8192), num_orders=200),
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", _KITCHENS)
async def test_everybody_is_served_once_and_right_and_nothing_is_left(
    start_stack: conftest.StartStack, tmp_path: Path, name: str, seed: int
) -> None:
    kitchen = _KITCHENS[name]
    running = kitchen.start(start_stack)
    async with client.connected(running.nats_url) as asking:
        table = Table(asking, seed, _NUM_TOGETHER)
        async with (
            trouble.overheard_ids(asking) as draw_id,
            trouble.cancelling(table, seed, draw_id),
            trouble.repeating(asking, seed),
        ):
            await table.serve(Menu(seed, kitchen.sizes).draw(kitchen.num_orders))
        await _check_idle(running, kitchen, asking)
        await table.close()
    assert 0 == running.stop()

    checker = Checker(PlainModel(tmp_path / "cache"), table, seed, kitchen.sizes.num_blocks)
    await checker.check()
    assert checker.num_whole > kitchen.num_orders / 10
    alone = start_stack([*_FAKE, "--kv-memory", "1MiB"], {"SLIPSTREAM_FAKE_STEP_MS": "0"})
    async with client.connected(alone.nats_url) as asking:
        assert await compare_alone(asking, table.served, seed) > kitchen.num_orders / 10
    assert 0 == alone.stop()


async def _check_idle(running: stack.Stack, kitchen: Kitchen, asking: client.Client) -> None:
    """By the books and by the gauges nobody holds anything, some time after the last answer."""
    books, gauges = await asking.audit(), await scrape.scrape(running, kitchen.services)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_S):
            while any(books[each] for each in _HELD) or gauges.total("requests"):
                await asyncio.sleep(0.1)
                books = await asking.audit()
                gauges = await scrape.scrape(running, kitchen.services)

    assert {} == gauges.by("state", "requests")
    assert [] == books.get("problems", [])
    assert dict.fromkeys(_HELD, 0) == {name: books[name] for name in _HELD}
    assert books["num_blocks"] == books["num_free"] + books["num_cached"]
