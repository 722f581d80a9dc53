"""A shallow model made from a target: its first layers, trained blocks, part of its head."""

import msgspec
import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.matrix import FORMAT_OF_DTYPE, TILE
from slipstream.shared.drafting.trained_file import TrainedDraft
from slipstream.shared.errors import ModelError
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packed_file import Array, PackedArrays
from slipstream.shared.model.packed_weights import (
    quantized_matrix,
    strongest_first,
    takes_outliers,
)
from slipstream.shared.model.packing import (
    PAIR,
    interleave,
    named,
    pack_bf16,
    pack_float32,
)

Weights = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int32]


class LayeredWeights:
    """
    Packed weights of such a model, under the names that the kernels' runner looks for.

    The target's stay where they are mapped, so that processes of a host share them; what was
    trained is packed here, in a fraction of a second.
    """

    def __init__(self, target: PackedArrays, embedding: Array, draft: TrainedDraft) -> None:
        """`embedding` is all of it: float32, or bf16 beside a head in bf16."""
        self._target = target
        self._num_layers = draft.origin.num_layers
        weight_format = FORMAT_OF_DTYPE[target["head.weights"].dtype.name]
        self._own: dict[str, Array] = {
            "embedding": embedding,
            "final_norm": draft.tensors["final_norm"],
            **named("head", _head(target, draft.head_token_ids)),
        }
        for block_idx in range(draft.origin.num_blocks):
            place = f"layers.{self._num_layers + block_idx}"
            self._own.update(_block(draft, f"blocks.{block_idx}", place, weight_format))

    def __getitem__(self, name: str) -> Array:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str) -> Array | None:
        """Return a tensor, or None where there is none of the name."""
        if name in self._own:
            return self._own[name]
        return self._target.get(name) if self._is_of_target(name) else None

    def _is_of_target(self, name: str) -> bool:
        part, _, rest = name.partition(".")
        return part == "layers" and int(rest.partition(".")[0]) < self._num_layers


def is_of_bf16(packed: PackedArrays) -> bool:
    """Tell whether matrices are kept in bf16, beside which an embedding is too."""
    return packed["head.weights"].dtype == np.uint16


def embedding_of_head(packed: PackedArrays) -> Array:
    """Return a tied embedding as rows [vocab, hidden], bf16 or float32, out of the packed head."""
    weights = packed["head.weights"]
    rows = weights.swapaxes(1, 2).reshape(len(weights) * TILE, -1)
    scales = packed.get("head.scales")
    if scales is None:
        return np.ascontiguousarray(rows)
    values = rows * scales[:, None]
    columns = packed.get("head.columns")
    if columns is None:
        return values
    in_order = np.empty_like(values)
    in_order[:, columns] = values
    return in_order


def layered_config(target: ModelConfig, draft: TrainedDraft) -> ModelConfig:
    """Return what the model is: like the target, with fewer layers and tokens to say."""
    return msgspec.structs.replace(
        target,
        name=f"draft of {target.name}",
        num_layers=draft.origin.num_layers + draft.origin.num_blocks,
        vocab_size=len(draft.head_token_ids),
        tie_word_embeddings=False,
    )


def _block(draft: TrainedDraft, prefix: str, place: str, weight_format: str) -> dict[str, Array]:
    tensors = draft.tensors
    try:
        matrices = {
            "qkv": np.concatenate([tensors[f"{prefix}.{part}_proj"] for part in "qkv"]),
            "output": tensors[f"{prefix}.o_proj"],
            "gate_up": interleave(tensors[f"{prefix}.gate_proj"], tensors[f"{prefix}.up_proj"]),
            "down": tensors[f"{prefix}.down_proj"],
        }
        packed: dict[str, Array] = {
            f"{place}.{norm}": tensors[f"{prefix}.{norm}"]
            for norm in ("attention_norm", "mlp_norm")
        }
        for name, weights in matrices.items():
            strengths = tensors[f"{prefix}.{name}.strengths"]
            packed |= named(f"{place}.{name}", _matrix(name, weights, strengths, weight_format))
    except KeyError as error:
        raise ModelError(f"the draft of {draft.origin.model} has no {error.args[0]}") from error
    return packed


def _matrix(
    name: str, weights: Weights, strengths: Weights, weight_format: str
) -> dict[str, Array]:
    if weight_format == "float32":
        return pack_float32(weights)
    if weight_format == "bf16":
        return pack_bf16(weights)
    has_outliers = takes_outliers(name, weights.shape[1])
    columns = strongest_first(strengths.astype(np.float64)) if has_outliers else None
    # In int4 as well: the block is small, and each bit of it counts for a whole model's.
    return quantized_matrix(name, weights, None, columns)


def _head(target: PackedArrays, token_ids: TokenIds) -> dict[str, Array]:
    """Return rows of the target's head, packed like all of it, and no number rounded again."""
    kept = np.concatenate([token_ids, np.zeros(-len(token_ids) % PAIR, np.int32)])
    weights = target["head.weights"]
    # Int8 is [n/16, k/4, 16, 4], floats are [n/16, k, 16]: the rows of a tile are the third.
    rows = weights[kept // TILE, :, kept % TILE]
    tiles = rows.reshape(-1, TILE, *rows.shape[1:]).swapaxes(1, 2)
    head: dict[str, Array] = {"weights": np.ascontiguousarray(tiles)}
    for name in ("scales", "sums", "outlier_sums"):
        values = target.get(f"head.{name}")
        if values is not None:
            head[name] = np.ascontiguousarray(values[kept])
    columns = target.get("head.columns")
    if columns is not None:
        head["columns"] = columns
    return head
