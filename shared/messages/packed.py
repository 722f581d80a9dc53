"""Lists of unsigned 32-bit integers: token ids, block ids, generations."""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Self, overload

_TYPECODE = "I"
_MAX_VALUE = 2**32 - 1
_NUM_BYTES = 4
assert array(_TYPECODE).itemsize == _NUM_BYTES, "array('I') must be 32 bits wide here"


class PackedInts(Sequence[int]):
    """
    An immutable list of uint32: packed little-endian bytes in msgpack, a plain list in JSON.

    Raises ValueError for a value outside [0, 2**32 - 1] or for bytes that are no multiple of 4.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[int] = ()) -> None:
        try:
            self._values = array(_TYPECODE, values)
        except (OverflowError, TypeError) as error:
            msg = f"expected integers in [0, {_MAX_VALUE}]: {error}"
            raise ValueError(msg) from error

    @classmethod
    def from_bytes(cls, packed: bytes) -> Self:
        """Read packed little-endian uint32."""
        if len(packed) % _NUM_BYTES:
            msg = f"expected packed uint32, got {len(packed)} bytes (no multiple of {_NUM_BYTES})"
            raise ValueError(msg)
        made = cls()
        made._values.frombytes(packed)
        if sys.byteorder == "big":
            made._values.byteswap()
        return made

    def to_bytes(self) -> bytes:
        """Return the values as packed little-endian uint32."""
        if sys.byteorder == "little":
            return self._values.tobytes()
        swapped = array(_TYPECODE, self._values)
        swapped.byteswap()
        return swapped.tobytes()

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedInts": ...
    def __getitem__(self, index: int | slice) -> "int | PackedInts":
        if isinstance(index, slice):
            return PackedInts(self._values[index])
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedInts):
            return self._values == other._values
        return isinstance(other, list | tuple) and list(self._values) == list(other)

    def __hash__(self) -> int:
        return hash(self._values.tobytes())

    def __repr__(self) -> str:
        return f"PackedInts({self._values.tolist()!r})"
