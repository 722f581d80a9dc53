"""A worker's leases: renewed in bulk, safe by its own clock, given back with all that grew in."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import KV, MANAGER_VERBS
from slipstream.shared.ids import HostId, LeaseId, RequestId, WorkerId
from slipstream.shared.messages.kv import (
    Commit,
    Committed,
    KvRefused,
    Release,
    Released,
    Renew,
    Renewed,
)
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.worker import lease_keeper
from slipstream.shared.worker.lease_keeper import LeaseKeeper

HOST, LEASE = HostId("h"), LeaseId("l")
ATTEMPT = (RequestId("r"), 1)
SPAN = SpanContext("1" * 32, "1" * 16)
LOGGED = {"request_id": "r", "attempt": 1, "trace_id": SPAN.trace_id, "lease_id": LEASE}


class Manager:
    """Answers as a test wants it to, and remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.lost: list[LeaseId] = []
        self.is_silent = False
        self.is_refusing = False
        self.during_renewal: Any = None

    async def answer(self, message: Any, _incoming: Incoming) -> Any:
        self.heard.append(message)
        if self.is_silent:
            return None
        if self.is_refusing:
            return KvRefused(reason="stale_epoch")
        if isinstance(message, Renew):
            if self.during_renewal is not None:
                self.during_renewal()
            return Renewed(lease_ms=30_000, lost=self.lost)
        return Committed(num_blocks=1) if isinstance(message, Commit) else Released()

    @property
    def releases(self) -> list[Release]:
        return [each for each in self.heard if isinstance(each, Release)]


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def lost() -> list[LeaseId]:
    return []


@pytest.fixture
async def keeper(manager: Manager, lost: list[LeaseId]) -> LeaseKeeper:
    bus = MemoryBus()
    for verb in MANAGER_VERBS:
        await serve(bus, KV.subject(host_id=HOST, verb=verb), KV, manager.answer)
    keeper = LeaseKeeper(bus, HOST, (WorkerId("w"), 1), 30_000)
    keeper.on_lost = lost.append
    return keeper


def check_logged(lines: Sequence[Mapping[str, Any]], event: str) -> None:
    """A line that tells of the event names its request, attempt and trace."""
    (line,) = (each for each in lines if each["event"] == event)
    assert line.items() >= LOGGED.items()


def now() -> float:
    return lease_keeper.time.monotonic()


def test_a_lease_is_safe_by_the_time_it_was_asked_for(keeper: LeaseKeeper) -> None:
    keeper.hold(LEASE, now() - 25, ATTEMPT, SPAN)

    assert keeper.is_safe(LEASE, 2)
    assert not keeper.is_safe(LEASE, 6)
    assert not keeper.is_safe(LeaseId("other"), 0)


async def test_a_renewal_makes_it_safe_again(keeper: LeaseKeeper) -> None:
    keeper.hold(LEASE, now() - 29, ATTEMPT, SPAN)
    await keeper.renew()

    assert keeper.is_safe(LEASE, 25)


@pytest.mark.parametrize("how", ["is_silent", "is_refusing"])
async def test_an_unanswered_renewal_extends_nothing(
    keeper: LeaseKeeper, manager: Manager, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def impatient(bus: Any, host_id: HostId, message: Any, **_: Any) -> Any:
        return await call_kv(bus, host_id, message, timeout_s=0.05)

    call_kv = lease_keeper.call_kv
    monkeypatch.setattr(lease_keeper, "call_kv", impatient)
    setattr(manager, how, True)
    keeper.hold(LEASE, now() - 29, ATTEMPT, SPAN)
    keeper.grow(LEASE, [3], [1])
    await keeper.renew()

    assert not keeper.is_safe(LEASE, 5)
    setattr(manager, how, False)
    await keeper.renew()
    assert [3] == list(manager.heard[-1].renewals[0].grown.block_ids), "told until it is heard"


async def test_what_grew_in_is_told_once(keeper: LeaseKeeper, manager: Manager) -> None:
    """Also what grows in while the renewal is on its way: that belongs to the next one."""
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)
    keeper.grow(LEASE, [3, 4], [1, 1])
    manager.during_renewal = lambda: keeper.grow(LEASE, [5], [2])
    await keeper.renew()
    manager.during_renewal = None
    await keeper.renew()
    await keeper.renew()

    grown = [list(each.renewals[0].grown.block_ids) for each in manager.heard]
    assert [[3, 4], [5], []] == grown


async def test_a_lost_lease_is_told_once_and_no_step_starts_under_it(
    keeper: LeaseKeeper, manager: Manager, lost: list[LeaseId]
) -> None:
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)
    manager.lost = [LEASE]
    with capture_logs() as lines:
        await keeper.renew()
        await keeper.renew()

    assert [LEASE] == lost
    check_logged(lines, "lease_lost")
    assert not keeper.is_safe(LEASE, 0)
    assert [] == manager.heard[-1].renewals


async def test_the_release_of_a_lost_lease_gives_back_what_grew_in(
    keeper: LeaseKeeper, manager: Manager
) -> None:
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)
    keeper.grow(LEASE, [3], [1])
    manager.lost = [LEASE]
    await keeper.renew()

    assert await keeper.release(LEASE, ATTEMPT)
    assert [3] == list(manager.heard[-1].grown.block_ids)


async def test_a_release_is_repeated_until_it_is_answered(
    keeper: LeaseKeeper, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(bus: Any, host_id: HostId, message: Any, **_: Any) -> Any:
        manager.is_silent = len(manager.heard) < 3
        return await call_kv(bus, host_id, message, timeout_s=0.02)

    call_kv = lease_keeper.call_kv
    monkeypatch.setattr(lease_keeper, "call_kv", deaf)
    monkeypatch.setattr(lease_keeper, "_MAX_RELEASE_WAIT_S", 0.001)
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)

    assert await keeper.release(LEASE, ATTEMPT)
    assert 4 == len(manager.releases)


async def test_a_commit_brings_the_blocks_that_grew_in_and_so_does_the_next_renewal(
    keeper: LeaseKeeper, manager: Manager
) -> None:
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)
    keeper.grow(LEASE, [3], [1])
    assert await keeper.commit(LEASE, 64, [5] * 32)
    await keeper.renew()

    committed, renewed = manager.heard
    assert (64, [5] * 32, LEASE) == (committed.num_tokens, committed.token_ids, committed.lease_id)
    assert ([3], [3]) == (committed.grown.block_ids, renewed.renewals[0].grown.block_ids)


async def test_a_commit_is_to_be_told_again_only_if_nobody_answered(
    keeper: LeaseKeeper, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def impatient(bus: Any, host_id: HostId, message: Any) -> Any:
        return await call_kv(bus, host_id, message, timeout_s=0.02)

    call_kv = lease_keeper.call_kv
    monkeypatch.setattr(lease_keeper, "call_kv", impatient)
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)
    assert await keeper.commit(LeaseId("other"), 32, [5] * 32)
    assert [] == manager.heard
    manager.is_refusing = True
    assert await keeper.commit(LEASE, 32, [5] * 32)
    manager.is_silent = True
    with capture_logs() as lines:
        assert not await keeper.commit(LEASE, 32, [5] * 32)

    check_logged(lines, "commit_unanswered")


async def test_a_release_without_a_manager_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "_MAX_RELEASE_WAIT_S", 0.001)
    monkeypatch.setattr(lease_keeper, "_RELEASE_TRIES", 1)
    keeper = LeaseKeeper(MemoryBus(), HOST, (WorkerId("w"), 1), 30_000)
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)

    with capture_logs() as lines:
        assert not await keeper.release(LEASE, ATTEMPT)

    check_logged(lines, "release_unanswered")


async def test_a_lease_that_was_adopted_is_let_go_in_silence(
    keeper: LeaseKeeper, manager: Manager, lost: list[LeaseId]
) -> None:
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)
    keeper.give(LEASE)
    manager.lost = [LEASE]
    await keeper.renew()
    await keeper.renew()

    assert ([], []) == (lost, manager.releases)
    assert [] == manager.heard[-1].renewals


async def test_a_lease_that_nobody_adopted_is_given_back(
    keeper: LeaseKeeper, manager: Manager
) -> None:
    """The decode worker died between its answer and its adoption."""
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)
    keeper.give(LEASE)
    await keeper.renew()
    assert [] == manager.releases, "it may be on its way"
    held = keeper._held[LEASE]
    held.given_at = now() - 11
    with capture_logs() as lines:
        await keeper.renew()

    assert [(LEASE, "r", 1)] == [(r.lease_id, r.request_id, r.attempt) for r in manager.releases]
    assert not keeper._held
    check_logged(lines, "lease_never_taken")


async def test_renewals_come_every_third_of_the_lease(manager: Manager) -> None:
    bus = MemoryBus()
    await serve(bus, KV.subject(host_id=HOST, verb="renew"), KV, manager.answer)
    keeper = LeaseKeeper(bus, HOST, (WorkerId("w"), 1), 60)
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)
    loop = asyncio.create_task(keeper.renew_loop())
    async with asyncio.timeout(5):
        while len(manager.heard) < 2:
            await asyncio.sleep(0.005)
    loop.cancel()

    assert keeper.is_safe(LEASE, 1)


class Link:
    """The host's socket, answered by the manager of the test."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.num_asked = 0

    async def ask(self, question: Any, _timeout_s: float) -> Any:
        self.num_asked += 1
        return Released() if isinstance(question, Release) else Renewed(lease_ms=30_000)


@pytest.mark.parametrize("is_known_to_be_away", [True, False])
async def test_without_nats_leases_are_renewed_and_released_over_the_link(
    manager: Manager, is_known_to_be_away: bool
) -> None:
    bus, link = MemoryBus(), Link(manager)
    keeper = LeaseKeeper(bus, HOST, (WorkerId("w"), 1), 30_000, link)  # type: ignore[arg-type] # its place
    keeper.hold(LEASE, now() - 29, ATTEMPT, SPAN)
    if is_known_to_be_away:
        bus.connection.lost()
    await keeper.renew()

    assert keeper.is_safe(LEASE, 25)
    assert await keeper.release(LEASE, ATTEMPT)
    assert 2 == link.num_asked
    assert [] == manager.heard


async def test_with_nats_the_link_is_left_alone(manager: Manager) -> None:
    bus, link = MemoryBus(), Link(manager)
    await serve(bus, KV.subject(host_id=HOST, verb="renew"), KV, manager.answer)
    keeper = LeaseKeeper(bus, HOST, (WorkerId("w"), 1), 30_000, link)  # type: ignore[arg-type] # as above
    keeper.hold(LEASE, now(), ATTEMPT, SPAN)
    await keeper.renew()

    assert (1, 0) == (len(manager.heard), link.num_asked)
