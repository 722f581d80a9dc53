"""
The file of a draft made from a target: what was trained, and which target it belongs to.

A safetensors file. `blocks.<i>.<matrix>` are decoder blocks in bf16 that follow the target's
first layers, `final_norm` precedes the head, and `head_token_ids` are the tokens that the head
knows: rows of the target's own. What goes into the blocks' matrices
(`blocks.<i>.<matrix>.strengths`) says which inputs keep more bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from slipstream.shared.errors import ModelError
from slipstream.shared.model.packed_file import Array, PackedFile, write_packed
from slipstream.shared.model.packing import round_to_bf16, widen_bf16

# Raised when the meaning of the file changes.
VERSION = 1
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NORMS = ("attention_norm", "mlp_norm")
# The inputs whose strengths are kept, by the matrices of the kernels that take them.
INPUTS = ("qkv", "output", "gate_up", "down")

Weights = npt.NDArray[np.float32]


class DraftOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Which target a draft was made from, and how."""

    model: str
    fingerprint: str  # of the checkpoint
    tokenizer_fingerprint: str
    num_layers: int  # of the target, in front
    num_blocks: int  # trained, behind them
    version: int = VERSION


@dataclass(frozen=True, eq=False)
class TrainedDraft:
    """The arrays of a draft, in float32, by the names that the file has them under."""

    origin: DraftOrigin
    tensors: Mapping[str, Weights]
    head_token_ids: npt.NDArray[np.int32]

    def write(self, path: Path) -> None:
        """Write the file, matrices in bf16."""
        tensors: dict[str, Array] = {
            name: round_to_bf16(values) if values.ndim > 1 else values
            for name, values in self.tensors.items()
        }
        tensors["head_token_ids"] = self.head_token_ids
        values = msgspec.to_builtins(self.origin)
        write_packed(path, tensors, {name: str(value) for name, value in values.items()})

    @classmethod
    def read(cls, path: Path) -> "TrainedDraft":
        """Read a file. Raises ModelError."""
        file = PackedFile(path)
        try:
            origin = msgspec.convert(file.metadata, DraftOrigin, strict=False)
        except msgspec.ValidationError as error:
            raise ModelError(f"{path} is no trained draft: {error}") from error
        if origin.version != VERSION:
            raise ModelError(
                f"{path} is a draft of version {origin.version}, and this Slipstream reads "
                f"{VERSION}; make it again with slipstream draft train"
            )
        head_token_ids = file.get("head_token_ids")
        if head_token_ids is None:
            raise ModelError(f"{path} is no trained draft: it has no head_token_ids")
        tensors = {name: _widened(file[name]) for name in file.names if name != "head_token_ids"}
        return cls(origin, tensors, head_token_ids)


def _widened(values: Array) -> Weights:
    return widen_bf16(values) if values.dtype == np.uint16 else values
