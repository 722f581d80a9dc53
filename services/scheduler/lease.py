"""Keep the leader lease, or try to get it: the steps of `Leadership` on the bucket."""

import asyncio
import time
from collections.abc import Callable

import structlog

from slipstream.services.scheduler.leadership import Leadership
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.durable import StorageError
from slipstream.shared.bus.leader import NoStorageError
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.reports import LeaderRecord

log = structlog.get_logger()

_LOOK_S = 0.05  # at the least between two looks
_MAX_LOOK_S = 0.2  # at the most: a connection that is lost or back says so to nobody


class LeaderLease:
    """Speaks to the bucket; what an answer means is for `Leadership` to say."""

    def __init__(self, bus: Bus, scheduler_id: WorkerId, leadership: Leadership) -> None:
        self._bus = bus
        self._store = bus.leader()
        self._value = encode(LeaderRecord(scheduler_id))
        self._scheduler_id = scheduler_id
        self._leadership = leadership
        self._num_returns = bus.connection.num_returns
        self._wake = asyncio.Event()
        self._trouble = ""

    def hurry(self) -> None:
        """Look at once."""
        self._wake.set()

    async def loop(self, on_look: Callable[[], None]) -> None:
        """Look for ever, and have others look at what has become of the leadership each time."""
        while True:
            await self.look()
            on_look()
            due_in_s = self._leadership.due_in_s(time.monotonic())
            try:
                async with asyncio.timeout(min(max(due_in_s, _LOOK_S), _MAX_LOOK_S)):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def look(self) -> None:
        """Do what is due, if anything."""
        now = time.monotonic()
        connection = self._bus.connection
        if not connection.is_up:
            self._leadership.disconnected(now)
            self._leadership.look(now)
            return
        if self._num_returns != connection.num_returns:
            self._num_returns = connection.num_returns
            self._leadership.reconnected(now)
        step = self._leadership.look(now)
        if step is None:
            return
        try:
            await (self._create(now) if step == "create" else self._renew(now))
            self._trouble = ""
        except StorageError as error:
            self._note(error)
            self._leadership.unreachable(
                time.monotonic(),
                is_absent=isinstance(error, NoStorageError),
                may_have_written=step == "renew",
            )

    async def give_up(self) -> None:
        """Let somebody else have it at once."""
        revision = self._leadership.revision
        self._leadership.lost(time.monotonic())
        if not revision:
            return
        try:
            await self._store.delete(revision)
        except StorageError as error:
            log.warning("lease_not_given_up", error=str(error))

    async def _create(self, now: float) -> None:
        revision = await self._store.create(self._value)
        if revision is not None:
            self._leadership.won(now, revision)
            return
        entry = await self._store.get()
        if entry is not None and self._is_mine(entry.value):
            # Of a write whose answer was lost; how old it is nobody knows, so it is written again.
            revision = await self._store.update(self._value, entry.revision)
            if revision is not None:
                self._leadership.won(now, revision)
        else:
            self._leadership.denied(time.monotonic())

    async def _renew(self, now: float) -> None:
        revision = await self._store.update(self._value, self._leadership.revision)
        if revision is not None:
            self._leadership.renewed(now, revision)
            return
        entry = await self._store.get()
        if entry is None:
            await self._write_again(now)
        elif self._is_mine(entry.value):
            # An earlier write was there, though nobody said so.
            revision = await self._store.update(self._value, entry.revision)
            if revision is not None:
                self._leadership.renewed(now, revision)
        else:
            self._leadership.lost(time.monotonic())

    async def _write_again(self, now: float) -> None:
        revision = await self._store.create(self._value)
        if revision is None:
            self._leadership.lost(time.monotonic())
        elif not self._leadership.wrote_again(now, revision):
            await self._store.delete(revision)

    def _is_mine(self, value: bytes) -> bool:
        record: LeaderRecord = decoder_of(LeaderRecord).decode(value)
        return record.scheduler_id == self._scheduler_id

    def _note(self, error: StorageError) -> None:
        """Log trouble once, not with every try."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.warning("leadership_unavailable", error=str(error), remedy=_REMEDY)


_REMEDY = "a single scheduler serves without; two need JetStream, with room for a small bucket"
