"""What is evicted comes back from a file as it was, if that is sooner than computing it."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slipstream.services.kv_manager.eviction import make_order
from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.pool import BlockPool
from slipstream.services.kv_manager.prefix_cache import PrefixCache
from slipstream.services.kv_manager.prefix_index import PrefixIndex
from slipstream.services.kv_manager.second_tier import SecondTier
from slipstream.services.kv_manager.slices import finish
from slipstream.services.kv_manager.spill_file import SpillFile
from slipstream.services.kv_manager.tier_rates import TierRates
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.ids import HostId, RequestId, WorkerId
from slipstream.shared.kv.arena import Arena
from slipstream.shared.kv.block_hash import BYTES_PER_TOKEN, NUM_BITS, BlockHasher
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.messages.kv import Commit, Lease, Leased, Release
from slipstream.shared.messages.packed import PackedInts

SIZE = 4
NUM_BLOCKS = 12
LAYOUT = KvLayout(1, 1, 2, SIZE, kind="fake")
WORKER = WorkerId("w")


class Host:
    """Books, arena and file of a host, and a worker that fills blocks with what they stand for."""

    def __init__(self, directory: Path, num_slots: int, hash_bits: int = NUM_BITS) -> None:
        self.arena = Arena.create(directory, HostId("h"), 1, NUM_BLOCKS + 1, LAYOUT)
        hasher = BlockHasher(hash_bits)
        index = PrefixIndex(hasher)
        order = make_order("lru", NUM_BLOCKS)
        pool = BlockPool(NUM_BLOCKS, self.arena.generations, index, order)
        self.book = LeaseBook(pool, PrefixCache(index, SIZE), SIZE, 30.0)
        self.book.worker_joined(WORKER, 1)
        self.file = SpillFile(
            directory / "disk", LAYOUT.block_bytes, num_slots * LAYOUT.block_bytes
        )
        self.tier = SecondTier(self.book, self.arena, self.file, hasher)
        self.num_requests = 0
        self.now = 0.0

    def lease_of(self, tokens: list[int], salt: str = "") -> Lease:
        self.num_requests += 1
        return Lease(
            request_id=RequestId(f"r{self.num_requests}"),
            attempt=1,
            worker_id=WORKER,
            worker_epoch=1,
            num_blocks=-(-len(tokens) // SIZE),
            layout="",
            token_ids=PackedInts(tokens),
            cache_salt=salt,
        )

    async def serve(self, tokens: list[int], salt: str = "", took_s: float = 1.0) -> int:
        """Serve a prompt as the manager does; return how many of its tokens were cached."""
        message = self.lease_of(tokens, salt)
        await self.tier.restore(message)
        leased = self.book.lease(message, self.now)
        assert isinstance(leased, Leased)
        num_cached = leased.num_cached_tokens // SIZE
        for idx, block_id in enumerate(leased.blocks.block_ids):
            if idx < num_cached:
                assert self.bytes_of(block_id) == content(tokens, idx, salt), "another's KV"
            else:
                self.write(block_id, content(tokens, idx, salt))
        self.now += took_s
        commit = Commit(
            request_id=message.request_id,
            attempt=1,
            lease_id=leased.lease_id,
            worker_id=WORKER,
            num_tokens=len(tokens) // SIZE * SIZE,
            token_ids=PackedInts(tokens[: len(tokens) // SIZE * SIZE]),
        )
        self.tier.saw_commit(commit, self.now)
        self.book.commit(commit, self.now)
        release = Release(
            request_id=message.request_id, attempt=1, lease_id=leased.lease_id, worker_id=WORKER
        )
        self.book.release(release, self.now)
        await self.tier._spill_some()
        assert [] == self.book.check_integrity() == finish(self.tier.spilled.index.problems())
        return leased.num_cached_tokens

    def bytes_of(self, block_id: int) -> bytes:
        start = block_id * LAYOUT.block_bytes
        return bytes(self.arena.blocks[start : start + LAYOUT.block_bytes])

    def write(self, block_id: int, what: bytes) -> None:
        start = block_id * LAYOUT.block_bytes
        self.arena.blocks[start : start + LAYOUT.block_bytes] = what

    async def flood(self, num_prompts: int = 6) -> None:
        for number in range(num_prompts):
            await self.serve([1000 + self.num_requests * 10 + number] * 2 * SIZE)


def content(tokens: list[int], idx: int, salt: str) -> bytes:
    """Return what stands in a block: a function of all tokens up to its end."""
    seed = f"{salt} {tokens[: (idx + 1) * SIZE]}"
    return random.Random(seed).randbytes(LAYOUT.block_bytes)


@pytest.fixture(params=[NUM_BITS, 0], ids=["hashes", "collisions"])
async def host(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    made = Host(tmp_path, 40, request.param)
    yield made
    made.tier.close()
    made.arena.close()


PROMPT = list(range(1, 3 * SIZE + 2))  # three blocks and a token


async def test_an_evicted_prompt_comes_back_as_it_was(host: Host) -> None:
    assert 0 == await host.serve(PROMPT)
    await host.flood()
    message = host.lease_of(PROMPT)
    assert not host.book.prefixes.find(message).blocks, "evicted"

    assert 3 * SIZE == await host.serve(PROMPT)
    assert 3 == host.tier.num_restored_blocks


async def test_what_begins_alike_shares_what_lies_in_the_file(host: Host) -> None:
    await host.serve(PROMPT)
    await host.serve([*PROMPT[: 2 * SIZE], 98, 98, 98, 98])
    await host.flood()

    assert 2 * SIZE == await host.serve([*PROMPT[: 2 * SIZE], 99, 99, 99, 99, 99])
    assert 0 == await host.serve(PROMPT, salt="other")


async def test_what_memory_has_is_not_read(host: Host) -> None:
    await host.serve(PROMPT)
    await host.serve(PROMPT)

    assert 0 == host.tier.num_restored_blocks


async def test_reading_must_be_faster_than_computing(host: Host) -> None:
    await host.serve(PROMPT)
    await host.flood()
    assert host.tier.rates.token_s.value is not None, "computing was measured"
    host.tier.rates.byte_s.value = 2 * host.tier.rates.token_s.value

    assert 0 == await host.serve(PROMPT)


async def test_a_damaged_block_is_computed_again_and_so_is_what_follows(host: Host) -> None:
    await host.serve(PROMPT)
    await host.flood()
    second = host.tier.spilled.index.find(
        host.book.prefixes._root(host.lease_of(PROMPT)),
        PackedInts(PROMPT[: 2 * SIZE]).to_bytes(),
        SIZE * BYTES_PER_TOKEN,
    )[1]
    host.file._checksums[second.block_id] ^= 1

    assert SIZE == await host.serve(PROMPT)
    assert [] == finish(host.tier.spilled.index.problems())


async def test_a_small_file_keeps_what_was_used_last_and_is_not_rewritten_for_ever(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, 4)
    for number in range(20):
        async with asyncio.timeout(5):
            await host.serve([number] * 2 * SIZE)
    assert len(host.tier.spilled) <= 4
    long_prompt = list(range(1, 8 * SIZE + 2))
    async with asyncio.timeout(5):
        await host.serve(long_prompt)
        await host.flood(8)
    assert await host.serve(long_prompt) in range(0, 4 * SIZE + 1, SIZE)
    host.tier.close()


async def test_a_full_disk_costs_the_tier_and_nothing_else(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host.file, "write", fail)
    await host.serve(PROMPT)
    await host.flood()

    assert 0 == await host.serve(PROMPT) == len(host.tier.spilled)


async def test_anything_served_in_any_order_is_right(host: Host) -> None:
    rng = random.Random(1)
    prompts = [
        [rng.choice((1, 2)) for _ in range(SIZE)] * rng.randrange(1, 4) + [3] * rng.randrange(1, 6)
        for _ in range(30)
    ]
    num_cached = sum([await host.serve(rng.choice(prompts)) for _ in range(200)])

    assert num_cached > 0
    assert host.tier.num_restored_blocks > 0


def test_the_file_is_private_bounded_and_gone(tmp_path: Path) -> None:
    file = SpillFile(tmp_path, 64, 200)

    assert (3, []) == (file.num_slots, list(tmp_path.iterdir()))
    file.close()
    with pytest.raises(ConfigurationError, match="holds no block of 64 bytes"):
        SpillFile(tmp_path, 64, 63)
    (tmp_path / "plain").write_text("x")
    with pytest.raises(ConfigurationError, match="can't be written"):
        SpillFile(tmp_path / "plain", 64, 640)


def test_rates_that_nobody_knows_are_measured_by_reading() -> None:
    rates = TierRates.unknown()
    assert rates.is_reading_faster(10**9, 1)
    rates.token_s.saw(1e-3)
    rates.byte_s.saw(1e-9)

    assert rates.is_reading_faster(999_999, 1)
    assert not rates.is_reading_faster(1_000_001, 1)
