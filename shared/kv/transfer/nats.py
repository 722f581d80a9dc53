"""The receiving side of the NATS plane, for networks in which only NATS is open."""

import asyncio
import contextlib
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Self

import nats.errors
from nats.aio.msg import Msg

from slipstream.shared.bus.nats_access import NO_ACCESS, NatsAccess
from slipstream.shared.bus.nats_bus import PENDING_BYTES, NatsBus
from slipstream.shared.bus.subjects import KV_DATA
from slipstream.shared.errors import DisconnectedError, NoRespondersError, ProtocolError
from slipstream.shared.kv.transfer.frames import CHUNK, pack_message, unpack_message
from slipstream.shared.kv.transfer.messages import Ask, Credit, Refused, Sent, ServerSays
from slipstream.shared.kv.transfer.nats_server import (
    CHUNK_HEADER,
    STALL_S,
    WINDOW,
    NatsServer,
)
from slipstream.shared.kv.transfer.plane import (
    Deadline,
    Fetched,
    FetchRequest,
    PlaneIdentity,
    TransferBrokenError,
)
from slipstream.shared.kv.transfer.progress import Progress, Question
from slipstream.shared.kv.transfer.trying import PASSING, error_of, fetch_in_turn
from slipstream.shared.messages.codec import decoder_of

__all__ = ["NatsPlane", "NatsServer"]

MAX_NUM_FETCHES = 8  # at a time; the others wait for their turn, within their deadline
_CREDIT_EVERY = WINDOW // 4  # chunks: the sender never runs dry, and hears from us seldom


class _Reception:
    """
    One stream while it comes, on the event loop.

    Once `end` is done, by its end, an error or a cancellation, nothing is written any more.
    """

    def __init__(self, bus: NatsBus, question: Question, deadline: Deadline) -> None:
        self._bus = bus
        self._question = question
        self._deadline = deadline
        self._sequence = 0
        self._position = 0
        self._offset = 0
        self._checksum = 0
        self._credit_inbox = ""
        # Raises TimeoutError around the wait for `end` when the stream stalls.
        self.patience = asyncio.timeout(deadline.left(STALL_S))
        self.end: asyncio.Future[Sent | Refused] = asyncio.get_running_loop().create_future()

    async def take(self, message: Msg) -> None:
        """Take the next message of the stream."""
        if self.end.done():
            return
        try:
            await self._take(message)
        except (ProtocolError, NoRespondersError, DisconnectedError) as error:
            if not self.end.done():
                self.end.set_exception(error)

    async def hang_up(self) -> None:
        """Tell a sender that is still at it that we have gone."""
        self.end.cancel()
        if self._credit_inbox:
            await self._grant(-1)

    async def _take(self, message: Msg) -> None:
        if (message.headers or {}).get("Status") == "503":
            raise NoRespondersError("the source's subject")
        if len(message.data) >= CHUNK_HEADER.size and message.data[0] == CHUNK & 0xFF:
            self._take_chunk(message.data)
            self._extend_patience()
            self._credit_inbox = message.reply
            if self._sequence % _CREDIT_EVERY == 0:
                await self._grant(self._sequence)
            return
        end = unpack_message(message.data, decoder_of(ServerSays))
        if (
            not isinstance(end, Sent | Refused)
            or end.transfer_id != self._question.fetch.transfer_id
            or (isinstance(end, Sent) and self._question.num_come != end.num_blocks)
        ):
            raise ProtocolError(f"{end} is no end of transfer {self._question.fetch.transfer_id}")
        self.end.set_result(end)

    def _extend_patience(self) -> None:
        if not self.patience.expired():
            now = asyncio.get_running_loop().time()
            self.patience.reschedule(now + max(0.0, min(STALL_S, self._deadline.remaining_s)))

    async def _grant(self, num_taken: int) -> None:
        credit = Credit(self._question.fetch.transfer_id, num_taken)
        await self._bus.publish(self._credit_inbox, pack_message(credit))

    def _take_chunk(self, frame: bytes) -> None:
        """Write a chunk to its place. Raises ProtocolError for one out of order."""
        kind, sequence, position, offset, checksum = CHUNK_HEADER.unpack_from(frame)
        expected = (CHUNK, self._sequence, self._position, self._offset)
        size = len(frame) - CHUNK_HEADER.size
        if (kind, sequence, position, offset) != expected or position >= len(self._question.places):
            raise ProtocolError(f"chunk {sequence} at {position}+{offset}, {expected} was due")
        place = self._question.places[position]
        if not 0 < size <= place.nbytes - offset:
            raise ProtocolError(f"a chunk of {size} bytes at {offset} of {place.nbytes}")
        data = memoryview(frame)[CHUNK_HEADER.size :]
        place[offset : offset + size] = data
        self._checksum = zlib.crc32(data, self._checksum)
        self._sequence += 1
        self._offset += size
        if self._offset == place.nbytes:
            self._question.note(position, is_whole=self._checksum == checksum)
            self._position, self._offset, self._checksum = position + 1, 0, 0


class NatsPlane:
    """Fetches blocks over a NATS connection of its own; addresses are host ids. See `connect`."""

    def __init__(self, identity: PlaneIdentity, bus: NatsBus, max_num_fetches: int) -> None:
        self._identity = identity
        self._bus = bus
        self._room = asyncio.Semaphore(max_num_fetches)
        self._running: set[_Reception] = set()
        self._is_closed = False

    @classmethod
    async def connect(
        cls,
        identity: PlaneIdentity,
        url: str,
        *,
        access: NatsAccess = NO_ACCESS,
        max_num_fetches: int = MAX_NUM_FETCHES,
    ) -> Self:
        """Connect. Raises ConfigurationError when no server answers."""
        bus = await NatsBus.connect(url, f"kv-transfer-{identity.host_id}-receiver", access)
        return cls(identity, bus, max_num_fetches)

    async def fetch(
        self, address: str, request: FetchRequest, into: Sequence[memoryview], deadline_s: float
    ) -> Fetched:
        """Copy blocks; see `TransferPlane`."""
        progress = Progress(request, into, self._identity)
        subject = KV_DATA.subject(host_id=address)
        ask = partial(self._ask, subject)
        return await fetch_in_turn(self._room, progress, ask, address, deadline_s)

    async def close(self) -> None:
        """End running transfers with TransferBrokenError and disconnect."""
        self._is_closed = True
        for reception in self._running:
            if not reception.end.done():
                reception.end.set_exception(TransferBrokenError("this plane is closed"))
        await asyncio.sleep(0)  # they say so to their senders
        await self._bus.close()

    async def _ask(self, subject: str, progress: Progress, deadline: Deadline) -> None:
        if self._is_closed:
            raise TransferBrokenError("this plane is closed")
        question = progress.next_question(deadline)
        reception = _Reception(self._bus, question, deadline)
        inbox = self._bus.new_inbox()
        self._running.add(reception)
        try:
            end = await self._receive(reception, subject, inbox, question)
        except PASSING:
            progress.keep(question)
            raise
        finally:
            self._running.discard(reception)
            reception.end.cancel()
        if isinstance(end, Refused):
            raise error_of(end)
        progress.finish(question)

    async def _receive(
        self, reception: _Reception, subject: str, inbox: str, question: Question
    ) -> Sent | Refused:
        try:
            stream = await self._bus.client.subscribe(
                inbox, cb=reception.take, pending_bytes_limit=PENDING_BYTES
            )
        except nats.errors.Error as error:
            raise DisconnectedError(subject) from error
        try:
            async with reception.patience:
                ask = Ask(self._identity.hello(), question.fetch)
                await self._bus.publish(subject, pack_message(ask), reply=inbox)
                return await reception.end
        except BaseException:
            with contextlib.suppress(DisconnectedError):
                await reception.hang_up()
            raise
        finally:
            with contextlib.suppress(nats.errors.Error):
                await stream.unsubscribe()
