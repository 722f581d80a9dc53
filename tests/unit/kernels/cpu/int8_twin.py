"""The tiny model in the arithmetic of the int8 format, in float64 and one matrix at a time."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slipstream.kernels import reference, reference_int8
from slipstream.shared.model.gptq import quantize_rows
from slipstream.shared.model.packed_weights import matrices, rotated
from slipstream.shared.model.packing import HADAMARD, NUM_OUTLIERS, rotary_tables

from .native_models import TinyModel


class Int8Twin:
    """What the packed int8 file of a tiny model means."""

    def __init__(self, model: TinyModel) -> None:
        self._model = model
        self._columns = torch.from_numpy(model.columns().astype(np.int64))
        self._matrices = {
            name: self._quantized(name, weights)
            for name, weights in matrices(model.tensors, model.config)
        }

    def run(self, token_ids: list[int]) -> npt.NDArray[np.float64]:
        """Return the logits of all positions."""
        config = self._model.config
        codes, scales = self._matrices["head"]
        hidden = torch.empty(len(token_ids), config.hidden_size, dtype=torch.float64)
        hidden[:, self._columns] = codes[token_ids] * scales[token_ids][:, None]
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
        codes, scales = self._matrices[name]
        num_outliers = 0
        if name.endswith("down"):
            x = reference_int8.hadamard(x, HADAMARD)
        elif not name.endswith("output"):
            x, num_outliers = x[:, self._columns], NUM_OUTLIERS
        return reference_int8.linear(x, codes, scales, num_outliers)

    def _quantized(self, name: str, weights: npt.NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        wide = weights.astype(np.float64)
        if name.endswith("down"):
            wide = rotated(wide)
        elif not name.endswith("output"):
            wide = wide[:, self._columns.numpy()]
        codes, scales = quantize_rows(wide, None)
        return torch.from_numpy(codes).double(), torch.from_numpy(scales).double()

    def _vector(self, name: str) -> Tensor:
        return torch.from_numpy(self._model.tensors[f"{name}.weight"]).double()
