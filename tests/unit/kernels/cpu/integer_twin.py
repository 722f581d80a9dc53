"""The tiny model in the arithmetic of the integer formats, in float64, a matrix at a time."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slipstream.kernels import reference, reference_int8
from slipstream.kernels.cpu.matrix import NUM_OUTLIERS
from slipstream.shared.model.gptq import quantize_rows
from slipstream.shared.model.gptq_groups import quantize_groups
from slipstream.shared.model.int4_grid import to_integers
from slipstream.shared.model.packed_weights import matrices, rotated, takes_4_bits
from slipstream.shared.model.packing import HADAMARD, rotary_tables

from .native_models import TinyModel, on_a_grid


@dataclass(frozen=True)
class TwinMatrix:
    """Codes [n, k] and scales [n], float64, and how inputs are turned into integers."""

    codes: Tensor
    scales: Tensor
    columns: Tensor  # which input stands at each place
    outliers: Tensor  # the places whose inputs have 16 bits
    is_rotated: bool

    def linear(self, x: Tensor) -> Tensor:
        """Return x W^T."""
        x = reference_int8.hadamard(x, HADAMARD) if self.is_rotated else x[:, self.columns]
        return reference_int8.linear(x, self.codes, self.scales, self.outliers)


class IntegerTwin:
    """What the packed file of a tiny model means."""

    def __init__(self, model: TinyModel, weight_format: str) -> None:
        self._model = model
        self._format = weight_format
        self._matrices = {
            name: self._quantized(name, weights)
            for name, weights in matrices(model.tensors, model.config)
        }

    def run(self, token_ids: list[int]) -> npt.NDArray[np.float64]:
        """Return the logits of all positions."""
        config = self._model.config
        head = self._matrices["head"]
        hidden = torch.empty(len(token_ids), config.hidden_size, dtype=torch.float64)
        hidden[:, head.columns] = head.codes[token_ids] * head.scales[token_ids][:, None]
        tables = rotary_tables(64, config.rope_theta, len(token_ids))
        cos, sin = (torch.from_numpy(table).double() for table in tables)
        for layer_idx in range(config.num_layers):
            hidden = self._layer(hidden, layer_idx, cos, sin)
        x = reference.rms_norm(hidden, self._vector("model.norm"), config.rms_norm_eps)
        logits: npt.NDArray[np.float64] = self._linear("head", x).numpy()
        return logits[:, : config.vocab_size]

    def _layer(self, hidden: Tensor, layer_idx: int, cos: Tensor, sin: Tensor) -> Tensor:
        config = self._model.config
        prefix, name = f"model.layers.{layer_idx}.", f"layers.{layer_idx}."
        x = reference.rms_norm(
            hidden, self._vector(prefix + "input_layernorm"), config.rms_norm_eps
        )
        heads = self._linear(name + "qkv", x).view(len(x), -1, 64)
        sizes = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        query, key, value = heads.split(sizes, dim=1)
        query, key = reference.rotary(query, cos, sin), reference.rotary(key, cos, sin)
        attended = reference_int8.attention(query, key, value, None).reshape(len(x), -1)
        hidden = hidden + self._linear(name + "output", attended)
        norm = self._vector(prefix + "post_attention_layernorm")
        x = reference.rms_norm(hidden, norm, config.rms_norm_eps)
        tiles = self._linear(name + "gate_up", x).view(len(x), -1, 2, 16)
        gate, up = (tiles[:, :, part].reshape(len(x), -1) for part in range(2))
        return hidden + self._linear(name + "down", reference.silu_and_multiply(gate, up))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return self._matrices[name].linear(x)

    def _quantized(self, name: str, weights: npt.NDArray[np.float32]) -> TwinMatrix:
        wide = weights.astype(np.float64)
        if self._format == "int8" or name == "head":
            return self._int8(name, wide)
        if self._format == "int4" and not takes_4_bits(name):
            return self._int8(name, wide)
        strengths = self._model.strengths(name)
        if self._format == "int4_carried":
            # The 16 strongest fours, the first of equals; all inputs of down.
            num_outliers = wide.shape[1] if name.endswith("down") else NUM_OUTLIERS
            grid = to_integers(on_a_grid(weights))
            return _twin(grid.integers(), grid.scales, np.arange(wide.shape[1]), num_outliers)
        if name.endswith("down"):
            grid = quantize_groups(rotated(wide), rotated(rotated(np.diag(strengths)).T).T)
            columns = np.arange(wide.shape[1])
            return _twin(grid.integers(), grid.scales, columns, 0, is_rotated=True)
        columns = np.argsort(-strengths, kind="stable")
        grid = quantize_groups(wide[:, columns], np.diag(strengths[columns]))
        return _twin(grid.integers(), grid.scales, columns, NUM_OUTLIERS)

    def _int8(self, name: str, wide: npt.NDArray[np.float64]) -> TwinMatrix:
        columns = np.arange(wide.shape[1])
        if name.endswith("down"):
            return _twin(*quantize_rows(rotated(wide), None), columns, 0, is_rotated=True)
        if name.endswith("output"):
            return _twin(*quantize_rows(wide, None), columns, 0)
        columns = self._model.columns().astype(np.int64)
        return _twin(*quantize_rows(wide[:, columns], None), columns, NUM_OUTLIERS)

    def _vector(self, name: str) -> Tensor:
        return torch.from_numpy(self._model.tensors[f"{name}.weight"]).double()


def _twin(
    codes: npt.NDArray[Any],
    scales: npt.NDArray[np.float32],
    columns: npt.NDArray[np.int64],
    num_outliers: int,
    *,
    is_rotated: bool = False,
) -> TwinMatrix:
    return TwinMatrix(
        torch.from_numpy(codes).double(),
        torch.from_numpy(scales).double(),
        torch.from_numpy(columns),
        torch.arange(num_outliers),
        is_rotated,
    )
