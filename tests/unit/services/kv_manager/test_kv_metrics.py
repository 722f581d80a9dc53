"""The KV manager shows its books as they stand when it is asked."""

import time

from slipstream.services.kv_manager.metrics import watch_book
from slipstream.services.kv_manager.pool import BlockState
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.kv import Leased, Release
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter

from .lease_messages import A, commit, grant, lease, make_book, release, renew

CACHE_METRICS = (
    "slipstream_kv_lookups_total",
    "slipstream_kv_looked_up_tokens_total",
    "slipstream_kv_cached_tokens_total",
    "slipstream_kv_evicted_blocks_total",
)


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
    message = Release(request_id=RequestId("r"), attempt=1, lease_id=held.lease_id, worker_id=A[0])
    book.release(message, now)
    book.release(message, now)
    assert (0, 0) == (read("slipstream_kv_leases"), read("slipstream_kv_lease_age_seconds"))
    assert (0, 0, 0, 0) == tuple(map(read, CACHE_METRICS))
    assert 1 == read("slipstream_late_completions_total")


def test_what_leases_found_and_what_was_evicted_is_counted() -> None:
    book = make_book(3)
    meter = PrometheusMeter()
    watch_book(meter, book)
    for number, tokens in enumerate([range(8), range(9), range(100, 108)]):
        given = lease(book, 3, request=f"r{number}", tokens=tokens)
        assert isinstance(given, Leased)
        commit(book, given.lease_id, len(tokens), tokens)
        release(book, given.lease_id, request=f"r{number}")

    read = meter.registry.get_sample_value
    assert (3, 25, 8, 2) == tuple(map(read, CACHE_METRICS))
