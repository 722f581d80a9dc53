"""How the bytes of a KV block are arranged: the contract between everyone who maps the arena."""

from dataclasses import dataclass
from typing import Literal

BLOCK_SIZE = 32  # token positions; a multiple of every SIMD width, small enough to waste little

# Raised when the arrangement changes: a reader with another version must not map the arena.
_LAYOUT_VERSION = 1

_BYTES_PER_ELEMENT = {"float32": 4, "bf16": 2, "int8": 1}
_BYTES_PER_SCALE = (
    4  # int8: one float32 for the key and one for the value of each position and head
)

# What the fake engine keeps of a position: its token id and its prefix's checksum, uint64 each.
FAKE_BYTES_PER_SLOT = 16


@dataclass(frozen=True, slots=True)
class KvLayout:
    """
    Sizes of one block: `block_size` positions of one sequence in all layers.

    A float32 or bf16 block is `[layer][key or value][kv_head][slot][head_dim]`, C order, without
    padding.
    An int8 block is `[layer][kv_head]` of keys `[slot / 16][head_dim / 4][16 slots][4]`, values
    `[slot / 4][head_dim][4 slots]`, key scales and value scales `[slot]`: what the kernels' dot
    products take. For the fake engine it is `[slot]` of (token id, prefix checksum), whatever the
    model's sizes.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int = BLOCK_SIZE
    dtype: str = "float32"
    kind: Literal["model", "fake"] = "model"

    def __post_init__(self) -> None:
        sizes = (self.num_layers, self.num_kv_heads, self.head_dim, self.block_size)
        if min(sizes) < 1:
            raise ValueError(f"every size of a KV layout is at least 1, not {sizes}")
        if self.dtype not in _BYTES_PER_ELEMENT:
            raise ValueError(f"KV dtype {self.dtype!r} is not one of {sorted(_BYTES_PER_ELEMENT)}")

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one position takes in all layers."""
        if self.kind == "fake":
            return FAKE_BYTES_PER_SLOT
        per_head = self.head_dim * _BYTES_PER_ELEMENT[self.dtype]
        if self.dtype == "int8":
            per_head += _BYTES_PER_SCALE
        return self.num_layers * 2 * self.num_kv_heads * per_head

    @property
    def block_bytes(self) -> int:
        """Bytes of one block; block i starts at `i * block_bytes` of the arena's block area."""
        return self.block_size * self.bytes_per_token

    @property
    def fingerprint(self) -> str:
        """One line that names everything above; two processes share blocks only if it is equal."""
        return (
            f"slipstream-kv/{_LAYOUT_VERSION} {self.kind} {self.dtype} layers={self.num_layers}"
            f" kv_heads={self.num_kv_heads} head_dim={self.head_dim} block={self.block_size}"
        )

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks that many positions need."""
        return -(-num_tokens // self.block_size)
