"""A lease that runs out on its way to another worker: its giver still proves that it stopped."""

import time

from slipstream.services.kv_manager.pool import BlockState
from slipstream.services.kv_manager.verbs import KvVerbs
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import KV, MANAGER_VERBS
from slipstream.shared.ids import HostId, RequestId
from slipstream.shared.messages.common import Message
from slipstream.shared.messages.kv import KvRequest
from slipstream.shared.worker.lease_keeper import LeaseKeeper

from .lease_messages import LEASE_S, A, adopt, count, leased, make_book, reason

_HOST = HostId("h")
_ATTEMPT = (RequestId("r"), 1)


async def test_blocks_of_a_lease_that_ran_out_before_it_was_adopted_come_back() -> None:
    """As when a prefill worker is frozen between its last step and the hand-over."""
    book = make_book()
    verbs = KvVerbs(book, "", _HOST, 1)
    given = leased(book)

    async def answer(message: KvRequest, _: Incoming) -> Message:
        return verbs.answer(message, time.monotonic())

    bus = MemoryBus()
    for verb in MANAGER_VERBS:
        await serve(bus, KV.subject(host_id=_HOST, verb=verb), KV, answer)
    keeper = LeaseKeeper(bus, _HOST, A, int(LEASE_S * 1000))
    keeper.hold(given.lease_id, time.monotonic() - LEASE_S, _ATTEMPT)
    book.sweep(time.monotonic() + LEASE_S)
    keeper.give(given.lease_id)
    assert "expired" == reason(adopt(book, given.lease_id))
    assert 2 == count(book, BlockState.QUARANTINED)

    await keeper.renew()
    keeper._held[given.lease_id].given_at = time.monotonic() - LEASE_S
    await keeper.renew()

    assert not keeper._held
    assert 0 == count(book, BlockState.QUARANTINED)
    assert book.pool.num_blocks == book.pool.num_free
    assert [] == book.check_integrity()
