"""Decoders of the KV transfer planes and of the host link."""

import asyncio
import socket
import struct
import zlib
from functools import cache
from typing import Any

from slipstream.shared.errors import ProtocolError
from slipstream.shared.kv import host_link
from slipstream.shared.kv.transfer.frames import BLOCK, CHUNK, HEADER, pack_message, unpack_message
from slipstream.shared.kv.transfer.messages import (
    Ask,
    Credit,
    FetchBlocks,
    Hello,
    Refused,
    Sent,
    ServerSays,
    ServerTakes,
    Welcome,
)
from slipstream.shared.kv.transfer.nats import _Reception
from slipstream.shared.kv.transfer.nats_server import CHUNK_HEADER
from slipstream.shared.kv.transfer.plane import Deadline
from slipstream.shared.kv.transfer.progress import Question
from slipstream.shared.kv.transfer.tcp_wire import pump_in
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.kv import ArenaHello

from .target import Target, golden_msgpack

_BLOCK_BYTES = 64
_NUM_BLOCKS = 3
_FETCH = FetchBlocks("t1", "l1", [1, 2, 3], [4, 5, 6], 1000)
_HELLO = Hello(1, "layout", "host", 7, "model", _BLOCK_BYTES)
_SAID = [
    Welcome(1, "layout", "host", 7, "model", _BLOCK_BYTES),
    Refused("busy", "later", "t1"),
    Sent("t1", _NUM_BLOCKS),
]
_BLOCKS = [bytes([position]) * _BLOCK_BYTES for position in range(_NUM_BLOCKS)]
_LINE = struct.Struct("<I")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def targets() -> list[Target]:
    """Return them all."""
    frames = [pack_message(each) for each in (_HELLO, _FETCH, Ask(_HELLO, _FETCH), *_SAID)]
    frames.append(pack_message(Credit("t1", 3)))
    kinds = {"takes": ServerTakes, "says": ServerSays, "ask": Ask, "credit": Credit}
    made = [_frame_target(name, kind, frames) for name, kind in kinds.items()]
    return [*made, _tcp_target(), _nats_target(), _link_target()]


def _frame_target(name: str, kind: Any, samples: list[bytes]) -> Target:  # Any: a union
    decoder = decoder_of(kind)

    def check(payload: bytes) -> object:
        # Half of them with a checksum that is right: the damage was done before it was taken.
        if len(payload) > HEADER.size and payload[-1] & 1:
            kind_, number, size, _ = HEADER.unpack_from(payload)
            body = payload[HEADER.size :]
            payload = HEADER.pack(kind_, number, size, zlib.crc32(body)) + body
        return unpack_message(payload, decoder)

    return Target(f"transfer.{name}", check, (ProtocolError,), samples)


def _question() -> Question:
    places = [memoryview(bytearray(_BLOCK_BYTES)) for _ in _BLOCKS]
    return Question(_FETCH, places, range(_NUM_BLOCKS))


def _tcp_target() -> Target:
    """The answer to a question as it comes from a socket, whose peer then hangs up."""

    def check(payload: bytes) -> object:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.settimeout(0)
            theirs.send(payload[:8192])
            theirs.shutdown(socket.SHUT_WR)
            question = _question()
            end = pump_in(ours, question, Deadline(5.0))
            assert not isinstance(end, Sent) or question.num_come == end.num_blocks
            return end

    whole = b"".join(
        HEADER.pack(BLOCK, position, _BLOCK_BYTES, zlib.crc32(block)) + block
        for position, block in enumerate(_BLOCKS)
    )
    samples = [whole + pack_message(_SAID[2]), pack_message(_SAID[1])]
    return Target("transfer.tcp", check, (ProtocolError, OSError), samples, share=0.3)


class _Message:
    """As the client library hands one over."""

    headers = None
    reply = "_INBOX.a.1"

    def __init__(self, data: bytes) -> None:
        self.data = data


class _Bus:
    async def publish(self, *_arguments: object, **_options: object) -> None:
        """Credits go nowhere."""


def _nats_target() -> Target:
    """Chunks into a reception, each after a length: whatever they say stays in its places."""

    async def receive(payload: bytes) -> object:
        question = _question()
        reception = _Reception(_Bus(), question, Deadline(5.0))  # type: ignore[arg-type] # as a bus
        async with reception.patience:
            while len(payload) >= _LINE.size and not reception.end.done():
                (size,) = _LINE.unpack_from(payload)
                piece, payload = payload[4 : 4 + size], payload[4 + size :]
                await reception.take(_Message(piece))  # type: ignore[arg-type] # as a message
        if not reception.end.done():
            raise ProtocolError("it ends too early")
        return await reception.end

    def chunk(position: int, block: bytes) -> bytes:
        checksum = zlib.crc32(block)
        return CHUNK_HEADER.pack(CHUNK, position, position, 0, checksum) + block

    pieces = [*(chunk(each, _BLOCKS[each]) for each in range(_NUM_BLOCKS)), pack_message(_SAID[2])]
    whole = b"".join(_LINE.pack(len(each)) + each for each in pieces)
    return Target(
        "transfer.nats",
        lambda payload: _loop().run_until_complete(receive(payload)),
        (ProtocolError,),
        [whole],
        share=0.3,
    )


def _link_target() -> Target:
    async def receive(payload: bytes) -> object:
        reader = asyncio.StreamReader(limit=2**20)
        reader.feed_data(payload)
        reader.feed_eof()
        return await host_link.receive(reader, ArenaHello)

    samples = [_LINE.pack(len(each)) + each for each in golden_msgpack("arena_hello")]
    return Target(
        "host_link",
        lambda payload: _loop().run_until_complete(receive(payload)),
        (ProtocolError, asyncio.IncompleteReadError),
        samples,
        share=0.3,
    )
