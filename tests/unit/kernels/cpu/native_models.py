"""A tiny random model, packed for the native kernels, and ways to run it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.matrix import GROUP
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.int4_grid import Grid
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_file import Array, PackedFile, write_packed
from slipstream.shared.model.packed_weights import (
    carried_matrix,
    int4_matrix,
    matrices,
    quantized_matrix,
    takes_4_bits,
    vectors,
)
from slipstream.shared.model.packing import named, pack_bf16, pack_float32, round_to_bf16
from slipstream.shared.model.runner import SequenceRows

NUM_BLOCKS = 96


def tiny_config(num_heads: int = 6, num_kv_heads: int = 2) -> ModelConfig:
    """Return odd sizes: a vocabulary that fills no tile, three query heads a KV head."""
    return ModelConfig(
        name="tiny",
        num_layers=2,
        hidden_size=num_heads * 64,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=64,
        intermediate_size=256,
        vocab_size=301,
        max_context_length=1024,
        rope_theta=10_000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        eos_token_ids=(0,),
    )


@dataclass
class TinyModel:
    """Random weights of a configuration, by their names in a checkpoint."""

    config: ModelConfig
    tensors: dict[str, npt.NDArray[np.float32]]

    @classmethod
    def random(cls, config: ModelConfig, seed: int = 0) -> "TinyModel":
        """Return weights of the usual sizes; a few input columns are strong, as in real models."""
        rng = np.random.default_rng(seed)

        def matrix(num_outputs: int, num_inputs: int) -> npt.NDArray[np.float32]:
            values = rng.standard_normal((num_outputs, num_inputs)) / np.sqrt(num_inputs)
            return values.astype(np.float32)

        hidden, dim = config.hidden_size, config.head_dim
        tensors = {
            "model.embed_tokens.weight": matrix(config.vocab_size, hidden) * np.float32(4),
            "model.norm.weight": rng.uniform(0.5, 1.5, hidden).astype(np.float32),
        }
        for i in range(config.num_layers):
            prefix = f"model.layers.{i}."
            for name in ("input_layernorm", "post_attention_layernorm"):
                norm = rng.uniform(0.5, 1.5, hidden).astype(np.float32)
                norm[:5] *= 30
                tensors[f"{prefix}{name}.weight"] = norm
            attention = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
            for name, num_heads in attention.items():
                tensors[f"{prefix}self_attn.{name}_proj.weight"] = matrix(num_heads * dim, hidden)
            tensors[f"{prefix}self_attn.o_proj.weight"] = matrix(hidden, config.num_heads * dim)
            for name in ("gate", "up"):
                tensors[f"{prefix}mlp.{name}_proj.weight"] = matrix(
                    config.intermediate_size, hidden
                )
            tensors[f"{prefix}mlp.down_proj.weight"] = matrix(hidden, config.intermediate_size)
        return cls(config, tensors)

    def columns(self) -> npt.NDArray[np.int32]:
        """Return an order of the hidden columns in which the strong ones come first."""
        rng = np.random.default_rng(7)
        others = rng.permutation(np.arange(5, self.config.hidden_size))
        return np.concatenate([np.arange(5), others]).astype(np.int32)

    def strengths(self, name: str) -> npt.NDArray[np.float64]:
        """Return how strong the inputs of a matrix are: as `columns` has it, where it has them."""
        num_inputs = self.config.intermediate_size if name.endswith("down") else 0
        num_inputs = num_inputs or self.config.hidden_size
        strengths = np.ones(num_inputs)
        if not name.endswith(("output", "down")):
            strengths[:5] = 30.0
        return strengths

    def write(self, path: Path, weight_format: str, nan_token: int | None = None) -> Path:
        """Write the packed file; `nan_token` has NaN for its embedding."""
        packed: dict[str, Array] = dict(vectors(self.tensors, self.config))
        for name, weights in matrices(self.tensors, self.config):
            if weight_format == "float32":
                parts = pack_float32(weights)
            elif weight_format == "bf16":
                parts = pack_bf16(weights)
            elif name != "head" and (
                weight_format == "int4_carried" or (weight_format == "int4" and takes_4_bits(name))
            ):
                parts = pack_matrix_int4(name, weights, self.strengths(name), weight_format)
            else:
                has_outliers = not name.endswith(("output", "down"))
                columns = self.columns() if has_outliers else None
                parts = quantized_matrix(name, weights, None, columns)
            if name == "head" and nan_token is not None:
                parts = _with_nan(parts, nan_token)
            packed |= named(name, parts)
        write_packed(path, packed, {"format": weight_format})
        return path


def pack_matrix_int4(
    name: str,
    weights: npt.NDArray[np.float32],
    strengths: npt.NDArray[np.float64],
    weight_format: str,
) -> dict[str, Array]:
    """Return a matrix in `int4`, rounded by us, or `int4_carried`, as from a file of 4 bits."""
    if weight_format == "int4":
        return int4_matrix(name, weights, np.diag(strengths))
    return carried_matrix(name, on_a_grid(weights), strengths)


def on_a_grid(weights: npt.NDArray[np.float32]) -> Grid:
    """Round each group of a matrix to 16 levels between its ends."""
    groups = weights.reshape(len(weights), -1, GROUP).astype(np.float64)
    lowest, highest = groups.min(axis=2), groups.max(axis=2)
    steps = (highest - lowest) / 15
    codes = np.rint((groups - lowest[..., None]) / steps[..., None]).astype(np.uint8)
    return Grid(codes.reshape(weights.shape), steps, lowest)


def _with_nan(head: dict[str, Array], token_id: int) -> dict[str, Array]:
    """Return the output head, which is the embedding too, with a token's row made NaN."""
    ill = {name: values.copy() for name, values in head.items()}
    if "scales" in ill:
        ill["scales"][token_id] = np.nan
    else:
        nan = np.float32(np.nan)
        is_bf16 = ill["weights"].dtype == np.uint16
        row = ill["weights"][token_id // 16, :, token_id % 16]
        row[:] = round_to_bf16(np.array(nan)) if is_bf16 else nan
    return ill


def open_runner(
    path: Path,
    config: ModelConfig,
    kv_format: str,
    *,
    level: str | None = None,
    num_threads: int = 2,
    is_fused: bool = True,
) -> NativeRunner:
    """Return a runner over a fresh arena whose unused bytes are poison (NaN in float32)."""
    layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, dtype=kv_format)
    arena = np.full(layout.block_bytes * NUM_BLOCKS, 0xFF, np.uint8)
    return NativeRunner(
        loader.load(level),
        PackedFile(path),
        config,
        memoryview(arena),
        layout,
        num_threads,
        is_fused=is_fused,
    )


def rows(
    token_ids: Sequence[int], num_computed: int, table: Sequence[int], num_logits: int | None = None
) -> SequenceRows:
    """Return the rows of a sequence from `num_computed` on, with logits for all of them."""
    num_rows = len(token_ids) - num_computed
    return SequenceRows(
        list(token_ids),
        num_computed,
        num_rows,
        list(table),
        num_rows if num_logits is None else num_logits,
    )
