"""The scheduler hears what hosts hold, asks where it missed something, and plans by it."""

from typing import Any

import pytest

from slipstream.services.scheduler import prefix_watch
from slipstream.services.scheduler.prefix_watch import PrefixWatch
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import EVENT, KV
from slipstream.shared.ids import HostId
from slipstream.shared.kv.block_hash import BlockHasher, PrefixKeys, full_blocks
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.kv import Known, KnownBlocks, KvRefused
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import KvEvent
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.scheduling.prefix_map import PrefixMap

from .scheduler_office import Office
from .scheduler_samples import make_record, until

NEAR, FAR = HostId("h"), HostId("far")
CLASS = "model|layout|int8"


def hashes(token_ids: list[int]) -> list[bytes]:
    """Return what a manager tells of a prompt in blocks of 32."""
    hasher = BlockHasher()
    keys = PrefixKeys(layout="layout", model="model", numerics="int8")
    found = [hasher.root(keys.packed())]
    for block in full_blocks(PackedInts(token_ids), 32):
        found.append(hasher.child(found[-1], block))
    return [*found[1:]]


class Manager:
    """A KV manager that tells what it is told to, and answers questions in two parts."""

    def __init__(self, bus: Any, host_id: HostId = NEAR) -> None:
        self.bus = bus
        self.host_id = host_id
        self.number = 0
        self.known: list[bytes] = []
        self.asked: list[int] = []
        self.refusal: KvRefused | None = None

    async def listen(self) -> "Manager":
        await serve(self.bus, KV.subject(host_id=self.host_id, verb="known"), KV, self._answer)
        return self

    async def tell(self, stored: list[bytes], *, is_lost: bool = False) -> None:
        self.number += 1
        self.known += stored
        if not is_lost:
            event = KvEvent(self.host_id, 1, self.number, stored, [])
            await self.bus.publish(EVENT.subject(role="kv"), encode(event))
            await self.bus.flush()

    async def _answer(self, message: Known, _incoming: Incoming) -> KnownBlocks | KvRefused:
        self.asked.append(message.first_block_id)
        if self.refusal is not None:
            return self.refusal
        half = len(self.known) // 2
        is_first = message.first_block_id == 1
        some = self.known[:half] if is_first else self.known[half:]
        next_block_id = half + 2 if is_first else None
        return KnownBlocks(self.host_id, 1, self.number, b"".join(some), next_block_id)


@pytest.fixture
async def watched(office: Office) -> PrefixMap:
    prefixes = office.desk.load.prefixes
    metrics = office.desk._metrics
    metrics.watch_prefixes(prefixes.num_blocks)
    await PrefixWatch(office.bus, prefixes, office.desk.run, metrics.asked_for_prefixes).start()
    return prefixes


async def test_after_a_gap_all_parts_are_asked_for_and_counted(
    office: Office, watched: PrefixMap
) -> None:
    manager = await Manager(office.bus).listen()
    made = hashes([1] * 320)
    await manager.tell(made[:3])
    assert [] == manager.asked
    await manager.tell(made[3:7], is_lost=True)
    await manager.tell(made[7:])
    await until(lambda: not watched.is_stale(NEAR))

    assert [1, 7] == manager.asked
    assert {NEAR: 10} == watched.num_blocks()
    assert 10 == office.metric("slipstream_known_blocks", host_id=NEAR)
    assert 1 == office.metric("slipstream_prefix_resyncs_total")


async def test_a_host_is_asked_again_but_not_at_each_event(
    office: Office, watched: PrefixMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first question comes to nothing; events go on."""
    manager = await Manager(office.bus).listen()
    manager.refusal = KvRefused(reason="unsupported")
    manager.number = 41
    for _ in range(20):
        await manager.tell([])
    assert [1] == manager.asked
    manager.refusal = None
    monkeypatch.setattr(prefix_watch, "_MIN_BETWEEN_S", 0.0)
    await manager.tell([])
    await until(lambda: not watched.is_stale(NEAR))

    assert [1, 1, 2] == manager.asked


async def test_a_host_that_nobody_answers_for_is_forgotten(
    office: Office, watched: PrefixMap
) -> None:
    manager = Manager(office.bus)
    manager.number = 41
    await manager.tell([b"1" * 16])
    await until(lambda: not watched.num_blocks())


async def test_a_host_is_forgotten_with_its_manager_and_with_no_other(
    office: Office, watched: PrefixMap
) -> None:
    manager = Manager(office.bus)
    await manager.tell(hashes([1] * 64))
    await office.worker("d")
    await office.report("k", "kv")
    for worker_id in ("d", "k"):
        assert {NEAR: 2} == watched.num_blocks()
        office.fleet.suspect(worker_id)
        office.watch._bury(worker_id)

    assert {} == watched.num_blocks()


async def test_a_prompt_goes_where_its_prefix_is_and_what_is_not_cached_counts(
    office: Office, watched: PrefixMap
) -> None:
    await office.worker("near", host_id=NEAR, kv_class=CLASS)
    far = await office.worker("far", host_id=FAR, kv_class=CLASS)
    await Manager(office.bus, FAR).tell(hashes([1] * 480))
    record = make_record(route="auto", prompt_token_ids=PackedInts([1] * 500))
    office.desk.open(record)
    await until(lambda: far.jobs)

    assert record.placement is not None
    assert (FAR, 480) == (record.placement.host_id, record.placement.num_cached_tokens)
    window = office.fleet.view(far.worker_id).window
    assert 20 == window.num_tokens


async def test_the_shortest_is_who_has_least_to_compute(office: Office, watched: PrefixMap) -> None:
    """Its work is less, too, by what other requests are told they have to wait for."""
    await Manager(office.bus).tell(hashes([1] * 480))
    await office.report("d", num_seats=0, kv_class=CLASS)
    load = office.desk.load
    load.add(make_record("new", prompt_token_ids=PackedInts([2] * 100)))
    load.add(make_record("cached", prompt_token_ids=PackedInts([1] * 500)))
    scored = SamplingParameters(seed=1, max_tokens=8, num_prompt_logprobs=1)
    load.add(make_record("scored", prompt_token_ids=PackedInts([1] * 500), sampling=scored))
    waiting = {each.request_id: each for each in load.queue.requests()}

    *_, shortest = load.queue.turns(0.0)
    assert shortest.request is waiting["cached"]
    assert [100, 20, 500] == [each.num_uncached_tokens for each in waiting.values()]
    assert waiting["cached"].work_s < waiting["new"].work_s < waiting["scored"].work_s
