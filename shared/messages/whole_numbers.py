"""Whole numbers that no message can pass on: JSON knows no largest one, msgpack ends at 64 bits."""

import re

import msgspec

from slipstream.shared.messages.packed import PackedInts

TOO_LARGE = "holds a whole number of more than 64 bits"

# The shortest that can be too large; digits in a text look the same, so what was read is asked.
_LONG = re.compile(rb"\d{19}")


def too_large_in(payload: bytes, value: object) -> bool:
    """Tell whether a value, read from these bytes of JSON, can't be written again."""
    return _LONG.search(payload) is not None and not _can_be_written(value)


def field_too_large(payload: bytes, message: msgspec.Struct) -> str | None:
    """Return the field of a message, read from these bytes of JSON, that can't be written again."""
    if _LONG.search(payload) is None:
        return None
    return next(
        (name for name in message.__struct_fields__ if not _can_be_written(getattr(message, name))),
        None,
    )


def _can_be_written(value: object) -> bool:
    try:
        msgspec.msgpack.encode(value, enc_hook=_packed)
    except OverflowError:
        return False
    return True


def _packed(value: object) -> bytes:
    if isinstance(value, PackedInts):
        return value.to_bytes()
    raise NotImplementedError(f"no wire form for {type(value).__name__}")
