"""Damage bytes: as links and disks do, and as somebody does who knows what lengths look like."""

import random
import struct
from collections.abc import Callable, Sequence

MAX_BYTES = 64 * 1024  # a longer input finds nothing that a short one doesn't, and costs more
_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)
_WIDE = (*_INTERESTING, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


class Mutator:
    """Makes one input from samples; the same seed makes the same inputs."""

    def __init__(self, random_: random.Random, words: Sequence[bytes] = ()) -> None:
        self._random = random_
        self._words = words  # that mean something to the decoder
        self._ways: tuple[Callable[[bytearray, bytes], None], ...] = (
            self._flip,
            self._flip,
            self._set_byte,
            self._cut,
            self._remove,
            self._repeat,
            self._splice,
            self._number,
            self._number,
            self._word,
        )

    def mutate(self, sample: bytes, other: bytes) -> bytes:
        """Return a damaged sample, into which some of the other may have got."""
        data = bytearray(sample)
        for _ in range(1 + int(self._random.random() ** 3 * 8)):
            self._random.choice(self._ways)(data, other)
        return bytes(data[:MAX_BYTES])

    def _at(self, data: bytearray) -> int:
        return int(self._random.random() * len(data))

    def _flip(self, data: bytearray, _other: bytes) -> None:
        if data:
            data[self._at(data)] ^= 1 << self._random.randrange(8)

    def _set_byte(self, data: bytearray, _other: bytes) -> None:
        if data:
            data[self._at(data)] = self._random.randrange(256)

    def _cut(self, data: bytearray, _other: bytes) -> None:
        del data[self._at(data) :]

    def _remove(self, data: bytearray, _other: bytes) -> None:
        start = self._at(data)
        del data[start : start + self._random.randrange(1, 17)]

    def _repeat(self, data: bytearray, _other: bytes) -> None:
        start = self._at(data)
        piece = data[start : start + self._random.randrange(1, 33)]
        data[start:start] = piece * self._random.choice((1, 2, 3, 100))

    def _splice(self, data: bytearray, other: bytes) -> None:
        start = int(self._random.random() * len(other))
        piece = other[start : start + self._random.choice((1, 4, 16, 64, 1024))]
        at = self._at(data)
        data[at : at + self._random.choice((0, len(piece)))] = piece

    def _number(self, data: bytearray, _other: bytes) -> None:
        """Put a length or an offset where one may stand."""
        order, code = self._random.choice("<>"), self._random.choice("BHIQ")
        size = struct.calcsize(f"{order}{code}")
        known = self._random.choice((*_WIDE, len(data), len(data) - 1, self._random.randrange(256)))
        at = self._at(data)
        number = known & (2 ** (8 * size) - 1)
        data[at : at + size] = number.to_bytes(size, "little" if order == "<" else "big")

    def _word(self, data: bytearray, other: bytes) -> None:
        if not self._words:
            self._splice(data, other)
            return
        at = self._at(data)
        data[at:at] = self._random.choice(self._words)
