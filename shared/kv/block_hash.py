"""
The hash of a full block: chained to its parent's, rooted in everything that KV depends on.

A hash only finds candidates. Who uses one compares tokens and parents before it believes it.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import NewType

from slipstream.shared.messages.packed import PackedInts

BlockHash = NewType("BlockHash", bytes)

NUM_BITS = 128
_NUM_BYTES = NUM_BITS // 8
BYTES_PER_TOKEN = 4
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixKeys:
    """What two sequences must have in common, beside their tokens, to share a block."""

    layout: str
    model: str = ""  # fingerprint
    numerics: str = ""
    cache_salt: str = ""
    adapter: str = ""

    def packed(self) -> bytes:
        """Return all keys that are set, each with its kind: salt "a" is not adapter "a"."""
        kinds = (
            (b"layout", self.layout),
            (b"model", self.model),
            (b"numerics", self.numerics),
            (b"salt", self.cache_salt),
            (b"adapter", self.adapter),
        )
        # With lengths, so that no value can look like the next kind.
        return b"".join(
            _with_length(kind) + _with_length(value.encode()) for kind, value in kinds if value
        )


class BlockHasher:
    """Hashes chains; fewer bits than all are for tests of collisions, none at all a constant."""

    def __init__(self, num_bits: int = NUM_BITS) -> None:
        assert 0 <= num_bits <= NUM_BITS, f"a block hash has {NUM_BITS} bits, not {num_bits}"
        self._mask = (1 << num_bits) - 1
        self._is_whole = num_bits == NUM_BITS

    def root(self, packed_keys: bytes) -> BlockHash:
        """Return what stands in for the parent of a sequence's first block."""
        return self._cut(sha256(b"root" + packed_keys).digest())

    def child(self, parent: BlockHash, tokens: bytes) -> BlockHash:
        """Return the hash of a block after its parent."""
        # Processors have instructions for this one; its first half is as good as a shorter hash.
        return self._cut(sha256(parent + tokens).digest())

    def _cut(self, digest: bytes) -> BlockHash:
        if self._is_whole:
            return BlockHash(digest[:_NUM_BYTES])
        cut = int.from_bytes(digest[:_NUM_BYTES], "little") & self._mask
        return BlockHash(cut.to_bytes(_NUM_BYTES, "little"))


def full_blocks(token_ids: PackedInts, block_size: int) -> Iterator[bytes]:
    """Yield the packed tokens of each full block."""
    packed = token_ids.to_bytes()
    num_bytes = block_size * BYTES_PER_TOKEN
    for start in range(0, len(packed) - num_bytes + 1, num_bytes):
        yield packed[start : start + num_bytes]


def _with_length(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value
