"""The serving side of the NATS plane: chunks as fast as the receiver grants credit for them."""

import asyncio
import struct
import zlib
from typing import Self

import structlog
from nats.aio.msg import Msg

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_access import NO_ACCESS, NatsAccess
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import KV_DATA, is_inbox
from slipstream.shared.errors import DisconnectedError, ProtocolError
from slipstream.shared.kv.transfer.frames import CHUNK, pack_message, unpack_message
from slipstream.shared.kv.transfer.messages import Ask, Credit, FetchBlocks, Refused, Sent
from slipstream.shared.kv.transfer.plane import (
    BlockSource,
    Deadline,
    TransferTimeoutError,
    why_refused,
)
from slipstream.shared.messages.codec import decoder_of

log = structlog.get_logger()

# Kind, sequence number in the stream, position of the block in the question, offset in the block,
# CRC-32 of the whole block.
CHUNK_HEADER = struct.Struct("<IIIII")
CHUNK_BYTES = 256 * 1024
# Chunks under way: what the server and nats-py hold of one stream at most. Unthrottled, large
# messages have the server drop the subscriber.
WINDOW = 8
STALL_S = 2.0  # without a chunk or credit for so long the other side counts as gone
MAX_NUM_STREAMS = 8
_LONGEST_ANSWER_S = 600.0


class _GoneError(Exception):
    """The receiver listens no more."""


class _Window:
    """What the receiver of one stream has said that it has taken."""

    def __init__(self, transfer_id: str) -> None:
        self._transfer_id = transfer_id
        self._num_taken = 0
        self._has_gone = False
        self._changed = asyncio.Event()

    async def take(self, message: Msg) -> None:
        """Note a credit."""
        if (message.headers or {}).get("Status") == "503":  # nobody listened to a chunk
            self._has_gone = True
        else:
            try:
                credit = unpack_message(message.data, decoder_of(Credit))
            except ProtocolError:
                return  # the next one says the same and more
            if credit.transfer_id == self._transfer_id:
                self._num_taken = max(self._num_taken, credit.num_taken)
                self._has_gone |= credit.num_taken < 0
        self._changed.set()

    async def room_for(self, sequence: int, deadline: Deadline) -> None:
        """Wait until a chunk may leave. Raises _GoneError, TransferTimeoutError."""
        while sequence - self._num_taken >= WINDOW and not self._has_gone:
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline.left(STALL_S)):
                    await self._changed.wait()
            except TimeoutError as error:
                raise _GoneError from error
        if self._has_gone:
            raise _GoneError


class NatsServer:
    """Answers on the subject of its host, over a connection of its own; see `start`."""

    def __init__(self, source: BlockSource, bus: NatsBus, max_num_streams: int) -> None:
        self._source = source
        self._bus = bus
        self._max_num_streams = max_num_streams
        self._chunk_bytes = min(CHUNK_BYTES, bus.max_payload - CHUNK_HEADER.size)
        self._streams: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls,
        source: BlockSource,
        url: str,
        *,
        access: NatsAccess = NO_ACCESS,
        max_num_streams: int = MAX_NUM_STREAMS,
    ) -> Self:
        """Connect and listen. Raises ConfigurationError when no server answers."""
        bus = await NatsBus.connect(url, f"kv-transfer-{source.identity.host_id}", access)
        server = cls(source, bus, max_num_streams)
        try:
            await bus.subscribe(KV_DATA.subject(host_id=server.address), server._answer)
            await bus.flush()
        except BaseException:
            await bus.close()
            raise
        return server

    @property
    def address(self) -> str:
        """Where clients reach us: the host's id."""
        return self._source.identity.host_id

    async def stop(self) -> None:
        """End running streams and disconnect."""
        streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await self._bus.close()

    async def _answer(self, question: Incoming) -> None:
        if not is_inbox(question.reply):
            return
        try:
            ask: Ask = unpack_message(question.payload, decoder_of(Ask))
        except ProtocolError as error:
            # Damaged, or of another version: the same question again may come through.
            log.info("kv_transfer_question_unread", error=str(error))
            return
        refused = self._refuse(ask)
        if refused is not None:
            await self._bus.publish(question.reply, pack_message(refused))
            return
        stream = asyncio.create_task(self._stream(ask.fetch, question.reply))
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)

    def _refuse(self, ask: Ask) -> Refused | None:
        transfer_id = ask.fetch.transfer_id
        if (mismatch := self._source.identity.mismatch(ask.hello)) is not None:
            return Refused("incompatible", mismatch, transfer_id)
        if len(self._streams) >= self._max_num_streams:
            return Refused("busy", f"{self._max_num_streams} transfers are under way", transfer_id)
        refusal = why_refused(self._source, ask.fetch)
        return Refused(*refusal, transfer_id) if refusal is not None else None

    async def _stream(self, fetch: FetchBlocks, reply: str) -> None:
        window = _Window(fetch.transfer_id)
        credit_inbox = self._bus.new_inbox()
        credits_ = await self._bus.client.subscribe(credit_inbox, cb=window.take)
        deadline = Deadline(min(max(fetch.deadline_ms, 1) / 1000, _LONGEST_ANSWER_S))
        try:
            await self._send_blocks(fetch, reply, credit_inbox, window, deadline)
            refusal = why_refused(self._source, fetch)
            end: Refused | Sent = Sent(fetch.transfer_id, len(fetch.block_ids))
            if refusal is not None:
                end = Refused(*refusal, fetch.transfer_id)
            await self._bus.publish(reply, pack_message(end))
        except (_GoneError, DisconnectedError, TransferTimeoutError) as error:
            log.info("kv_transfer_ended_early", error=str(error) or type(error).__name__)
        finally:
            await credits_.unsubscribe()

    async def _send_blocks(
        self, fetch: FetchBlocks, reply: str, credit_inbox: str, window: _Window, deadline: Deadline
    ) -> None:
        """Send until the first stale block; the checksum is taken before the generation is."""
        num_bytes, sequence = self._source.identity.block_bytes, 0
        pairs = zip(fetch.block_ids, fetch.generations, strict=True)
        for position, (block_id, generation) in enumerate(pairs):
            block = self._source.blocks[block_id * num_bytes : (block_id + 1) * num_bytes]
            checksum = zlib.crc32(block)
            if self._source.generations[block_id] != generation:
                return
            for offset in range(0, num_bytes, self._chunk_bytes):
                await window.room_for(sequence, deadline)
                header = CHUNK_HEADER.pack(CHUNK, sequence, position, offset, checksum)
                chunk = b"".join((header, block[offset : offset + self._chunk_bytes]))
                await self._bus.publish(reply, chunk, reply=credit_inbox)
                sequence += 1
