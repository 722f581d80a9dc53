"""What the KV manager shows of its books."""

import time

from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.meter import Meter


def watch_book(meter: Meter, book: LeaseBook) -> None:
    """Have everything read from the books when somebody asks."""
    pool = book.pool
    meter.watch(
        names.METRIC_KV_BLOCKS,
        lambda: {(state.value,): number for state, number in pool.counts().items()},
    )
    meter.watch(names.METRIC_KV_POOL_BLOCKS, lambda: {(): pool.num_blocks})
    meter.watch(names.METRIC_KV_LEASES, lambda: {(): len(book.table)})
    meter.watch(names.METRIC_KV_LEASE_AGE, lambda: {(): book.table.oldest_s(time.monotonic())})
    meter.watch(names.METRIC_LATE_COMPLETIONS, lambda: {(): book.num_late_messages})
