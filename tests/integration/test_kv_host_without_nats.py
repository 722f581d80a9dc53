"""A KV manager and its workers while NATS is away: leases last, and are asked for by socket."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slipstream.services.kv_manager.host import Host
from slipstream.shared.bus.connection import Connection
from slipstream.shared.config import KvConfig
from slipstream.shared.errors import DisconnectedError, NoAnswerError
from slipstream.shared.ids import LeaseId, RequestId, WorkerId
from slipstream.shared.kv.host_link import HostLink
from slipstream.shared.messages.kv import (
    ArenaHello,
    Lease,
    Leased,
    LeaseRenewal,
    Release,
    Released,
    Renew,
    Renewed,
)

from .service_stack import until

WORKER = WorkerId("w")
LEASE_S = 0.05


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
async def host(tmp_path: Path, connection: Connection) -> AsyncIterator[Host]:
    config = KvConfig(
        cache_dir=tmp_path / "cache",
        engine="fake",
        is_test_mode=True,
        arena_dir=tmp_path,
        num_blocks=8,
    )
    made = await Host.open(config, connection)
    yield made
    if made.arena.path.exists():
        await made.close()


@pytest.fixture
async def link(host: Host, tmp_path: Path) -> AsyncIterator[HostLink]:
    made = await HostLink.connect(tmp_path, ArenaHello(WORKER, 1, os.getpid()), 5)
    reading = asyncio.create_task(made.wait_gone())
    yield made
    reading.cancel()
    await made.close()


async def leased(host: Host) -> LeaseId:
    answer = await host.answer(
        Lease(
            request_id=RequestId("r"),
            attempt=1,
            worker_id=WORKER,
            worker_epoch=1,
            num_blocks=2,
            layout=host.layout.fingerprint,
        )
    )
    assert isinstance(answer, Leased)
    return answer.lease_id


def renewal(lease_id: LeaseId, worker_id: WorkerId = WORKER) -> Renew:
    return Renew(worker_id=worker_id, worker_epoch=1, renewals=[LeaseRenewal(lease_id=lease_id)])


async def test_no_lease_runs_out_while_nobody_could_renew_it(
    host: Host, link: HostLink, connection: Connection
) -> None:
    """The link makes its holder known."""
    host.book.lease_s = LEASE_S
    lease_id = await leased(host)
    connection.lost()
    await asyncio.sleep(3 * LEASE_S)
    host._sweep()
    assert lease_id in host.book.table.leases
    connection.back()
    host._sweep()
    assert lease_id in host.book.table.leases
    await asyncio.sleep(3 * LEASE_S)
    host._sweep()

    assert lease_id in host.book.table.quarantines
    assert [] == host.book.check_integrity()


async def test_leases_have_a_full_term_after_an_outage(
    host: Host, link: HostLink, connection: Connection
) -> None:
    lease = host.book.table.leases[await leased(host)]
    connection.lost()
    connection.back()
    lease.expires_at = host.now() + 0.001
    host._sweep()

    assert lease.expires_at - host.now() > host.book.lease_s / 2


async def test_a_worker_renews_and_releases_by_socket(host: Host, link: HostLink) -> None:
    lease_id = await leased(host)
    answers = [await link.ask(renewal(each), 5) for each in (lease_id, LeaseId("other"))]
    release = Release(request_id=RequestId("r"), attempt=1, lease_id=lease_id, worker_id=WORKER)
    released = await link.ask(release, 5)

    assert [[], [LeaseId("other")]] == [each.lost for each in answers if isinstance(each, Renewed)]
    assert Released(was_held=True) == released
    assert 8 == host.book.pool.num_free


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(
    host: Host, link: HostLink
) -> None:
    lease_id = await leased(host)
    with pytest.raises(NoAnswerError):
        await link.ask(renewal(LeaseId("other")), 0)
    answer = await link.ask(renewal(lease_id), 5)

    assert isinstance(answer, Renewed)
    assert [] == answer.lost


async def test_who_asks_in_another_name_is_hung_up_on(host: Host, link: HostLink) -> None:
    lease_id = await leased(host)
    with pytest.raises(DisconnectedError):
        await link.ask(renewal(lease_id, WorkerId("other")), 5)
    with pytest.raises(DisconnectedError):
        await link.ask(renewal(lease_id), 5)
    await until(lambda: not host.book.table.leases)


async def test_the_end_of_the_manager_ends_what_was_asked(host: Host, link: HostLink) -> None:
    await host.close()
    with pytest.raises(DisconnectedError):
        await link.ask(renewal(LeaseId("l")), 5)
