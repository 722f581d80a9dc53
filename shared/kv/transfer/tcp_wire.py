"""
Frames of the TCP plane: short ones on the event loop, blocks pumped by threads.

A frame is a header (kind, number, size, CRC-32 of what follows) and bytes: one message, or one
block, whose number is its position in the question.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from slipstream.shared.errors import ProtocolError
from slipstream.shared.kv.transfer.frames import (
    BLOCK,
    HEADER,
    check_message,
    decode_payload,
    pack_message,
)
from slipstream.shared.kv.transfer.messages import FetchBlocks, Refused, Sent, ServerSays
from slipstream.shared.kv.transfer.plane import BlockSource, Deadline
from slipstream.shared.kv.transfer.progress import Question
from slipstream.shared.kv.transfer.tcp_tls import receive_some, send_all
from slipstream.shared.messages.codec import Decoder, decoder_of

_TIMEVAL = struct.Struct("@ll")
_BUFFER_BYTES = 4 * 1024 * 1024
# Without a byte for so long the peer counts as gone: the connection is given up, not the transfer.
STALL_S = 5.0


class HungUpError(OSError):
    """The peer has closed the connection in the middle of something."""


def prepare(sock: socket.socket) -> None:
    """Set a fresh socket up for large blocks with small questions between them."""
    sock.settimeout(0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def hang_up(sock: socket.socket) -> None:
    """Wake whoever waits on the socket; its owner closes it."""
    try:
        # Not a TLS socket's own, which forgets its keys first: a thread would go on in the clear.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return  # it isn't connected (any more)


async def send_message(sock: socket.socket, message: object, deadline: Deadline) -> None:
    """Send one message. Raises OSError, TransferTimeoutError."""
    async with asyncio.timeout(deadline.left(STALL_S)):
        await send_all(sock, pack_message(message))


async def receive_message(
    sock: socket.socket,
    decoder: Decoder[Any],  # Any: as in the codec
    wait_s: float,
) -> Any:
    """Return the next message. Raises OSError (TimeoutError after wait_s), ProtocolError."""
    async with asyncio.timeout(wait_s):
        kind, _, size, checksum = HEADER.unpack(await _receive_exactly(sock, HEADER.size))
        check_message(kind, size)
        payload = await _receive_exactly(sock, size)
    return decode_payload(payload, checksum, decoder)


async def _receive_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    parts = bytearray()
    while len(parts) < num_bytes:
        part = await receive_some(sock, num_bytes - len(parts))
        if not part:
            raise HungUpError("the peer has hung up")
        parts += part
    return bytes(parts)


def pump_out(
    sock: socket.socket, source: BlockSource, fetch: FetchBlocks, deadline: Deadline
) -> bool:
    """
    Send the blocks of a question from a thread; return False at the first that is stale.

    From memory: with checksums, `sendfile` from the arena was a tenth slower over a veth pair.
    The checksum is taken before the generation is looked at: whatever matches it has been read
    while the block was what the question asks for, however late the kernel copies the bytes.
    Raises OSError, TransferTimeoutError.
    """
    with _blocking(sock):
        return _pump_out(sock, source, fetch, deadline)


def _pump_out(
    sock: socket.socket, source: BlockSource, fetch: FetchBlocks, deadline: Deadline
) -> bool:
    size = source.identity.block_bytes
    # TLS makes records as it likes, and takes no flags.
    more = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_MORE
    pairs = zip(fetch.block_ids, fetch.generations, strict=True)
    for position, (block_id, generation) in enumerate(pairs):
        block = source.blocks[block_id * size : (block_id + 1) * size]
        checksum = zlib.crc32(block)
        if source.generations[block_id] != generation:
            return False
        _block_until(sock, deadline)
        sock.sendall(HEADER.pack(BLOCK, position, size, checksum), more)
        num_sent = 0
        while num_sent < size:
            _block_until(sock, deadline)
            num_sent += sock.send(block[num_sent:])
    return True


@contextlib.contextmanager
def _blocking(sock: socket.socket) -> Iterator[None]:
    """
    Let a thread wait in the kernel, as long as `_block_until` says, then raise TimeoutError.

    Python's own timeouts make the socket non-blocking: two calls, and twice the interpreter's lock,
    for each part that comes instead of one a block.
    """
    sock.settimeout(None)
    try:
        yield
    except BlockingIOError as error:
        raise TimeoutError("the peer has stalled") from error
    finally:
        sock.settimeout(0)  # as the event loop wants it


def _block_until(sock: socket.socket, deadline: Deadline) -> None:
    wait_s = deadline.left(STALL_S)
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(wait_s)  # the kernel's would have OpenSSL ask again for ever
        return
    timeval = _TIMEVAL.pack(int(wait_s), max(1, int(wait_s % 1 * 1e6)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)


def pump_in(sock: socket.socket, question: Question, deadline: Deadline) -> Sent | Refused:
    """
    Receive the answer to a question from a thread, each block straight into its place.

    Raises OSError, ProtocolError, TransferTimeoutError.
    """
    with _blocking(sock):
        return _pump_in(sock, question, deadline)


def _pump_in(sock: socket.socket, question: Question, deadline: Deadline) -> Sent | Refused:
    header = memoryview(bytearray(HEADER.size))
    for position in range(len(question.places) + 1):
        _fill(sock, header, deadline)
        kind, number, size, checksum = HEADER.unpack(header)
        if kind != BLOCK:
            return _receive_end(sock, kind, size, checksum, question, deadline)
        if position == len(question.places):
            break
        place = question.places[position]
        if (number, size) != (position, place.nbytes):
            raise ProtocolError(f"block {number} of {size} bytes instead of block {position}")
        _fill(sock, place, deadline)
        question.note(position, is_whole=zlib.crc32(place) == checksum)
    raise ProtocolError("more blocks than were asked for")


def _fill(sock: socket.socket, place: memoryview, deadline: Deadline) -> None:
    flags = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL
    num_received = 0
    while num_received < place.nbytes:
        _block_until(sock, deadline)
        num_bytes = sock.recv_into(place[num_received:], place.nbytes - num_received, flags)
        if num_bytes == 0:
            raise HungUpError("the peer has hung up")
        num_received += num_bytes


def _receive_end(
    sock: socket.socket,
    kind: int,
    size: int,
    checksum: int,
    question: Question,
    deadline: Deadline,
) -> Sent | Refused:
    check_message(kind, size)
    payload = bytearray(size)
    _fill(sock, memoryview(payload), deadline)
    message = decode_payload(bytes(payload), checksum, decoder_of(ServerSays))
    if (
        not isinstance(message, Sent | Refused)
        or message.transfer_id != question.fetch.transfer_id
        or (isinstance(message, Sent) and question.num_come != message.num_blocks)
    ):
        raise ProtocolError(f"{message} is no end of transfer {question.fetch.transfer_id}")
    return message
