"""Sequences on their way from another host: however one ends, its blocks go back."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.services.decode import pulls as pulls_module
from slipstream.services.decode.pulls import RemotePulls
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import KV, MANAGER_VERBS
from slipstream.shared.ids import HostId, LeaseId, RequestId, WorkerId
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.messages.jobs import DecodeJob, HandOver, ReplyTarget
from slipstream.shared.messages.kv import (
    BlockOrigin,
    Blocks,
    Commit,
    Committed,
    KvRefused,
    Lease,
    Leased,
    Prefilled,
    Pull,
    Pulled,
    Release,
    Released,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.lease_keeper import LeaseKeeper
from slipstream.shared.worker.leasing import JobEndedError, Leasing
from slipstream.shared.worker.throughput import Speeds

SIZE = 4
NEAR, FAR = HostId("near"), HostId("far")
SPAN = SpanContext("1" * 32, "1" * 16)
TOKENS = list(range(1, 14))  # three blocks and a token
ORIGIN = BlockOrigin(
    host_id=FAR, arena_epoch=1, lease_id=LeaseId("far-lease"), worker_id=WorkerId("p"), layout="l"
)
SOURCE = Blocks(PackedInts([5, 6, 7, 8]), PackedInts([1, 1, 1, 1]))
ATTEMPT = (RequestId("r"), 1)
NO_LIMIT = Deadline(None)


class Manager:
    """Leases at once unless told otherwise, and takes its time over a pull if told so."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.has_room = True
        self.may_pull = asyncio.Event()
        self.may_pull.set()
        self.refusal: KvRefused | None = None

    async def answer(self, message: Any, _incoming: Incoming) -> Any:
        self.heard.append(message)
        match message:
            case Lease() if not self.has_room:
                return KvRefused(reason="no_blocks")
            case Lease():
                blocks = Blocks(PackedInts([1, 2, 3, 4]), PackedInts([1, 1, 1, 1]))
                return Leased(LeaseId("near-lease"), blocks, 30_000)
            case Pull():
                await self.may_pull.wait()
                return self.refusal or Pulled(len(message.source.block_ids), 0)
            case Commit():
                return Committed(message.num_tokens // SIZE)
            case Release():
                self.may_pull.set()  # as the real one, which stops a transfer with its lease
                return Released()

    def of(self, kind: type) -> list[Any]:
        return [each for each in self.heard if isinstance(each, kind)]

    @property
    def released(self) -> set[LeaseId | None]:
        return {each.lease_id for each in self.of(Release)}


@pytest.fixture
async def manager() -> Manager:
    return Manager()


@pytest.fixture
async def pulls(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RemotePulls]:
    monkeypatch.setattr(pulls_module, "_FORGOTTEN_S", 0.1)
    monkeypatch.setattr(pulls_module, "_LOOK_S", 0.005)
    bus = MemoryBus()
    for host_id in (NEAR, FAR):
        for verb in MANAGER_VERBS:
            await serve(bus, KV.subject(host_id=host_id, verb=verb), KV, manager.answer)
    worker = (WorkerId("w"), 1)
    host: Any = SimpleNamespace(
        host_id=NEAR,
        model=SimpleNamespace(layout=KvLayout(1, 1, 2, SIZE, kind="fake"), fingerprint="f"),
        numerics="n",
        num_tokens_ahead=8,
        num_blocks_of=KvLayout(1, 1, 2, SIZE, kind="fake").num_blocks_for,
        speeds=Speeds(),
        keeper=LeaseKeeper(bus, NEAR, worker, 30_000),
    )
    made = RemotePulls(bus, Leasing(bus, host, worker), 4)
    yield made
    await made.close()


def prefilled(num_tokens: int) -> Prefilled:
    return Prefilled(
        request_id=ATTEMPT[0],
        attempt=1,
        origin=ORIGIN,
        blocks=SOURCE,
        num_tokens=num_tokens,
        token_ids=PackedInts(TOKENS),
    )


def job() -> DecodeJob:
    return DecodeJob(
        request_id=ATTEMPT[0],
        attempt=1,
        model="fake",
        prompt_token_ids=PackedInts(TOKENS),
        sampling=SamplingParameters(seed=1),
        reply=ReplyTarget("_INBOX.x"),
        root_span=SPAN,
        attempt_span=SPAN,
        hand_over=HandOver(
            lease_id=ORIGIN.lease_id,
            host_id=FAR,
            prefill_worker_id=WorkerId("p"),
            block_ids=SOURCE.block_ids,
            generations=SOURCE.generations,
            num_computed_tokens=len(TOKENS),
            first_token_id=9,
            origin=ORIGIN,
        ),
    )


async def until(is_true: Any) -> None:
    async with asyncio.timeout(2):
        while not is_true():
            await asyncio.sleep(0.002)


async def test_what_is_told_is_fetched_once_and_the_hand_over_brings_the_rest(
    pulls: RemotePulls, manager: Manager
) -> None:
    pulls.prefilled(prefilled(SIZE))
    pulls.prefilled(prefilled(SIZE))
    pulls.prefilled(prefilled(2 * SIZE + 1))
    await until(lambda: len(manager.of(Commit)) == 2)
    leased = await pulls.take(job(), NO_LIMIT, lambda: False)

    assert [1, 2, 3, 4] == leased.block_ids
    fetched = [(each.first_block_idx, list(each.source.block_ids)) for each in manager.of(Pull)]
    assert [(0, [5]), (1, [6]), (2, [7, 8])] == fetched
    told = [(each.num_tokens, list(each.token_ids)) for each in manager.of(Commit)]
    assert [(4, TOKENS[:4]), (8, TOKENS[4:8]), (12, TOKENS[8:12])] == told
    await until(lambda: manager.released == {ORIGIN.lease_id})
    assert 0 == pulls.num_incoming


async def test_a_hand_over_after_a_long_wait_for_room_is_not_forgotten(
    pulls: RemotePulls, manager: Manager
) -> None:
    """Without a word for longer than a sequence is remembered that nobody hands over."""
    manager.has_room = False
    pulls.prefilled(prefilled(SIZE))
    taking = asyncio.create_task(pulls.take(job(), NO_LIMIT, lambda: False))
    await asyncio.sleep(0.3)
    manager.has_room = True
    leased = await asyncio.wait_for(taking, 2)

    assert [1, 2, 3, 4] == leased.block_ids
    assert LeaseId("near-lease") not in manager.released


async def test_a_slow_transfer_is_not_forgotten(pulls: RemotePulls, manager: Manager) -> None:
    manager.may_pull.clear()
    pulls.prefilled(prefilled(SIZE))
    taking = asyncio.create_task(pulls.take(job(), NO_LIMIT, lambda: False))
    await asyncio.sleep(0.3)
    manager.may_pull.set()

    assert [1, 2, 3, 4] == (await asyncio.wait_for(taking, 2)).block_ids


async def test_what_is_never_handed_over_goes_back(pulls: RemotePulls, manager: Manager) -> None:
    pulls.prefilled(prefilled(SIZE))
    await until(lambda: manager.of(Release))

    assert ({LeaseId("near-lease")}, 0) == (manager.released, pulls.num_incoming)


@pytest.mark.parametrize("when", ["leasing", "pulling"])
async def test_a_cancel_gives_back_at_once(pulls: RemotePulls, manager: Manager, when: str) -> None:
    """A lease that is asked for is given up by its attempt: it may be made after this."""
    manager.has_room = when != "leasing"
    manager.may_pull.clear()
    cancelled = asyncio.Event()
    taking = asyncio.create_task(pulls.take(job(), NO_LIMIT, cancelled.is_set))
    await until(lambda: manager.of(Pull) or (when == "leasing" and manager.of(Lease)))
    cancelled.set()
    with pytest.raises(JobEndedError) as caught:
        await asyncio.wait_for(taking, 1)

    assert "cancelled" == caught.value.code
    await until(lambda: ORIGIN.lease_id in manager.released)
    release = next(each for each in manager.of(Release) if each.lease_id != ORIGIN.lease_id)
    expected = (LeaseId("near-lease"), False) if when == "pulling" else (None, True)
    assert expected == (release.lease_id, release.is_tombstone)


async def test_a_drop_gives_back_what_was_begun(pulls: RemotePulls, manager: Manager) -> None:
    manager.may_pull.clear()
    pulls.prefilled(prefilled(SIZE))
    await until(lambda: manager.of(Pull))
    pulls.drop(ATTEMPT)

    await until(lambda: LeaseId("near-lease") in manager.released)
    assert not manager.of(Commit)


async def test_a_transfer_that_fails_ends_the_attempt_and_its_lease(
    pulls: RemotePulls, manager: Manager
) -> None:
    manager.refusal = KvRefused(reason="transfer_failed", message="the link is cut")
    with pytest.raises(JobEndedError) as caught:
        await pulls.take(job(), NO_LIMIT, lambda: False)

    assert "kv_transfer_failed" == caught.value.code
    await until(lambda: manager.released == {LeaseId("near-lease"), ORIGIN.lease_id})


async def test_the_deadline_ends_the_wait_for_room(pulls: RemotePulls, manager: Manager) -> None:
    manager.has_room = False
    with pytest.raises(JobEndedError) as caught:
        await pulls.take(job(), Deadline.from_ms(60), lambda: False)

    assert "deadline_exceeded" == caught.value.code
