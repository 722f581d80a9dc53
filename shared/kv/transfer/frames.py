"""How messages of the data planes become bytes, with a checksum: links damage questions too."""

import struct
import zlib
from typing import Any

from slipstream.shared.errors import ProtocolError
from slipstream.shared.messages.codec import Decoder, encode

HEADER = struct.Struct("<IIII")  # kind, number, size, CRC-32 of what follows
MESSAGE = 0x534B5631  # told apart from a block, and from other protocols
BLOCK = 0x534B5632
CHUNK = 0x534B5633
MAX_MESSAGE_BYTES = 1024 * 1024


def pack_message(message: object) -> bytes:
    """Return a message as one frame."""
    payload = encode(message)
    return HEADER.pack(MESSAGE, 0, len(payload), zlib.crc32(payload)) + payload


def check_message(kind: int, size: int) -> None:
    """Raise ProtocolError unless a header is that of a message of bearable size."""
    if kind != MESSAGE:
        raise ProtocolError(f"a frame of kind {kind:#x} instead of a message")
    if size > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {size} bytes is above {MAX_MESSAGE_BYTES}")


def decode_payload(
    payload: bytes,
    checksum: int,
    decoder: Decoder[Any],  # Any: as in the codec
) -> Any:
    """Return the message of a frame's payload. Raises ProtocolError."""
    if zlib.crc32(payload) != checksum:
        raise ProtocolError("a message came damaged")
    return decoder.decode(payload)


def unpack_message(frame: bytes, decoder: Decoder[Any]) -> Any:  # Any: as above
    """Return the message of a whole frame. Raises ProtocolError."""
    if len(frame) < HEADER.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes")
    kind, _, size, checksum = HEADER.unpack_from(frame)
    check_message(kind, size)
    return decode_payload(frame[HEADER.size :], checksum, decoder)
