"""What the KV manager shows of its books."""

import time
from collections.abc import Callable

from slipstream.services.kv_manager.host import Host
from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter


def watch_host(meter: Meter, host: Host) -> None:
    """Have everything of a host read when somebody asks."""
    watch_book(meter, host.book, host.now)
    tier = host.tier
    if tier is not None:
        meter.watch(metric_names.KV_SPILLED_BLOCKS, lambda: {(): len(tier.spilled)})
        meter.watch(metric_names.KV_RESTORED_BLOCKS, lambda: {(): tier.num_restored_blocks})


def watch_book(meter: Meter, book: LeaseBook, now: Callable[[], float] = time.monotonic) -> None:
    """Have everything read from the books when somebody asks."""
    pool = book.pool
    meter.watch(
        metric_names.KV_BLOCKS,
        lambda: {(state.value,): number for state, number in pool.counts().items()},
    )
    meter.watch(metric_names.KV_RESERVED_BLOCKS, lambda: {(): pool.num_reserved})
    meter.watch(metric_names.KV_POOL_BLOCKS, lambda: {(): pool.num_blocks})
    prefixes = book.prefixes
    meter.watch(metric_names.KV_LOOKUPS, lambda: {(): prefixes.num_lookups})
    meter.watch(metric_names.KV_LOOKED_UP_TOKENS, lambda: {(): prefixes.num_looked_up_tokens})
    meter.watch(metric_names.KV_CACHED_TOKENS, lambda: {(): prefixes.num_cached_tokens})
    meter.watch(metric_names.KV_EVICTED_BLOCKS, lambda: {(): prefixes.num_evicted_blocks})
    meter.watch(metric_names.KV_LEASES, lambda: {(): len(book.table)})
    meter.watch(metric_names.KV_LEASE_AGE, lambda: {(): book.table.oldest_s(now())})
    meter.watch(metric_names.LATE_COMPLETIONS, lambda: {(): book.num_late_messages})
