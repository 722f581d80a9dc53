"""The KV manager shows its books as they stand when it is asked."""

import time

from slipstream.services.kv_manager.metrics import watch_book
from slipstream.services.kv_manager.pool import BlockState
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.kv import Leased, Release
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter

from .lease_messages import A, commit, grant, lease, make_book, renew


def test_blocks_leases_and_late_messages_are_read_from_the_books() -> None:
    book = make_book(8)
    meter = PrometheusMeter()
    watch_book(meter, book)
    read = meter.registry.get_sample_value
    now = time.monotonic()
    held = lease(book, 3, now=now - 20)
    assert isinstance(held, Leased)
    commit(book, held.lease_id, 4)
    grant(book, 2)
    renew(book, held.lease_id, A, now=now)

    blocks = {state: read("slipstream_kv_blocks", {"state": state.value}) for state in BlockState}
    assert {
        BlockState.FREE: 3,
        BlockState.GRANTED: 2,
        BlockState.LEASED: 2,
        BlockState.COMMITTED: 1,
        BlockState.CACHED: 0,
        BlockState.QUARANTINED: 0,
    } == blocks
    assert 8 == read("slipstream_kv_pool_blocks")
    assert 1 == read("slipstream_kv_leases")
    # A renewal makes a lease no younger: one that nobody ends must show.
    assert 20 <= (read("slipstream_kv_lease_age_seconds") or 0) < 25
    release = Release(request_id=RequestId("r"), attempt=1, lease_id=held.lease_id, worker_id=A[0])
    book.release(release, now)
    book.release(release, now)
    assert (0, 0) == (read("slipstream_kv_leases"), read("slipstream_kv_lease_age_seconds"))
    assert 1 == read("slipstream_late_completions_total")
