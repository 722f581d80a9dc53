"""What others are told of the prefix index: what entered and left it, and all of it on request."""

import asyncio
from collections.abc import Iterator
from itertools import islice

import structlog

from slipstream.services.kv_manager.prefix_index import PrefixIndex
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.subjects import EVENT
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import HostId
from slipstream.shared.kv.block_hash import BlockHash
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.kv import Known, KnownBlocks
from slipstream.shared.messages.reports import KvEvent

log = structlog.get_logger()

_EVERY_S = 0.1
# With nothing to tell, an empty event still says which number is the last: who missed it hears so.
_QUIET_S = 1.0
MAX_NUM_BLOCKS = 2000  # of an event or an answer: less than a millisecond of an event loop


class IndexEvents:
    """
    Numbers what changed since the last look; on each hash the last word counts.

    Nobody waits for it: an index only writes into `changes`. Off, there is nothing to write into.
    """

    def __init__(
        self,
        host_id: HostId,
        epoch: int,
        num_blocks: int,
        *,
        is_on: bool = True,
        max_num_blocks: int = MAX_NUM_BLOCKS,
    ) -> None:
        self.changes: dict[BlockHash, bool] | None = {} if is_on else None
        self.number = 0  # of the last event
        self._host_id = host_id
        self._epoch = epoch
        self._num_blocks = num_blocks
        self._max_num_blocks = max_num_blocks

    def take(self) -> Iterator[KvEvent]:
        """Yield what changed, in events of a bounded size."""
        while self.changes:
            some = dict(islice(self.changes.items(), self._max_num_blocks))
            for each in some:
                del self.changes[each]
            yield self._event(
                [each for each, is_known in some.items() if is_known],
                [each for each, is_known in some.items() if not is_known],
            )

    def quiet(self) -> KvEvent:
        """Return an event without changes."""
        return self._event([], [])

    def known(self, index: PrefixIndex, message: Known) -> KnownBlocks:
        """
        Return the hashes of a range of blocks.

        Whoever joins the ranges and then repeats the events after the first answer's number has
        the index as it is: a block that no event speaks of was there at all of them.
        """
        first = max(1, message.first_block_id)
        end = min(first + self._max_num_blocks, self._num_blocks + 1)
        is_telling = self.changes is not None
        return KnownBlocks(
            host_id=self._host_id,
            epoch=self._epoch,
            number=self.number,
            hashes=b"".join(index.hashes(first, end)) if is_telling else b"",
            next_block_id=end if is_telling and end <= self._num_blocks else None,
        )

    async def loop(self, bus: Bus) -> None:
        """Publish for ever; not at all when off."""
        quiet_s = 0.0
        while self.changes is not None:
            await asyncio.sleep(_EVERY_S)
            quiet_s = 0.0 if self.changes else quiet_s + _EVERY_S
            for event in self.take():
                await self._publish(bus, event)
                await asyncio.sleep(0)  # others have their turn between large ones
            if quiet_s >= _QUIET_S:
                quiet_s = 0.0
                await self._publish(bus, self.quiet())

    def _event(self, stored: list[bytes], removed: list[bytes]) -> KvEvent:
        self.number += 1
        return KvEvent(self._host_id, self._epoch, self.number, stored, removed)

    async def _publish(self, bus: Bus, event: KvEvent) -> None:
        """Send an event, or lose it: its number will be missed."""
        try:
            await bus.publish(EVENT.subject(role="kv"), encode(event))
        except SlipstreamError as error:
            log.warning("kv_event_lost", number=event.number, error=str(error))
