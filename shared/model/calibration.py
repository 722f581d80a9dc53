"""
What a model's activations are like: found once, by a float32 pass over a few thousand tokens.

Needs torch; conversion only, never a running worker.
"""

import asyncio
import email.message
import inspect
import json.decoder
import textwrap
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.kernels import ops
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packing import rotary_tables
from slipstream.shared.model.tokenizer import Tokenizer

_NUM_TOKENS = 1024  # of each text
Moments = npt.NDArray[np.float64]


@dataclass
class Calibration:
    """Statistics by the name of a matrix's input, and the mean key of each layer."""

    moments: dict[str, Moments] = field(default_factory=dict)  # sums of x x^T, [k, k]
    largest: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)  # |x|, [k]
    key_means: list[npt.NDArray[np.float32]] = field(default_factory=list)  # [kv_heads, dim]

    def add(self, name: str, inputs: Tensor) -> None:
        """Take the inputs [rows, k] of a matrix."""
        x = inputs.double()
        moments, largest = (x.T @ x).numpy(), x.abs().amax(0).numpy()
        self.moments[name] = self.moments.get(name, 0.0) + moments
        self.largest[name] = np.maximum(self.largest.get(name, 0.0), largest)


def calibration_texts() -> list[str]:
    """
    Return text of several kinds that every installation has.

    None of it may be used to judge the result (`slipstream eval` takes other modules).
    """
    sources = [asyncio.base_events, json.decoder, email.message]
    texts = [inspect.getsource(source) for source in sources]
    prose = [textwrap.dedent(source.__doc__ or "") for source in (asyncio.Task, int, str, dict)]
    return [*texts, "\n\n".join([*prose, _PROSE])]


@torch.inference_mode()
def calibrate(
    tensors: dict[str, Tensor], config: ModelConfig, tokenizer: Tokenizer, texts: list[str]
) -> Calibration:
    """Run the texts through the float32 model and collect."""
    found = Calibration()
    keys: list[list[Tensor]] = [[] for _ in range(config.num_layers)]
    for text in texts:
        token_ids = tokenizer.encode(text)[:_NUM_TOKENS]
        _Pass(tensors, config, found, keys).run(token_ids)
    found.key_means = [torch.cat(each).mean(0).numpy() for each in keys]
    return found


class _Pass:
    """One text through the model, without a KV cache."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        config: ModelConfig,
        found: Calibration,
        keys: list[list[Tensor]],
    ) -> None:
        self._tensors = tensors
        self._config = config
        self._found = found
        self._keys = keys

    def run(self, token_ids: list[int]) -> None:
        config = self._config
        tables = rotary_tables(config.head_dim, config.rope_theta, len(token_ids))
        cos, sin = (torch.from_numpy(table) for table in tables)
        hidden = functional.embedding(
            torch.tensor(token_ids), self._tensors["model.embed_tokens.weight"]
        )
        for layer_idx in range(config.num_layers):
            hidden = self._layer(hidden, layer_idx, cos, sin)
        norm = self._tensors["model.norm.weight"]
        self._found.add("head", ops.rms_norm(hidden, norm, config.rms_norm_eps))

    def _layer(self, hidden: Tensor, layer_idx: int, cos: Tensor, sin: Tensor) -> Tensor:
        prefix, name = f"model.layers.{layer_idx}.", f"layers.{layer_idx}."
        epsilon = self._config.rms_norm_eps
        x = ops.rms_norm(hidden, self._weight(prefix + "input_layernorm"), epsilon)
        self._found.add(name + "qkv", x)
        attended = self._attend(x, prefix + "self_attn.", layer_idx, cos, sin)
        self._found.add(name + "output", attended)
        hidden = hidden + functional.linear(attended, self._weight(prefix + "self_attn.o_proj"))
        x = ops.rms_norm(hidden, self._weight(prefix + "post_attention_layernorm"), epsilon)
        self._found.add(name + "gate_up", x)
        gate = functional.linear(x, self._weight(prefix + "mlp.gate_proj"))
        up = functional.linear(x, self._weight(prefix + "mlp.up_proj"))
        gated = ops.silu_and_multiply(gate, up)
        self._found.add(name + "down", gated)
        return hidden + functional.linear(gated, self._weight(prefix + "mlp.down_proj"))

    def _attend(self, x: Tensor, prefix: str, layer_idx: int, cos: Tensor, sin: Tensor) -> Tensor:
        config = self._config
        query, key, value = (
            functional.linear(x, self._weight(f"{prefix}{name}_proj")).view(
                len(x), -1, config.head_dim
            )
            for name in "qkv"
        )
        query, key = ops.rotary(query, cos, sin), ops.rotary(key, cos, sin)
        self._keys[layer_idx].append(key)
        attended = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            is_causal=True,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1).reshape(len(x), -1)

    def _weight(self, name: str) -> Tensor:
        return self._tensors[f"{name}.weight"]


_PROSE = """
The river had risen in the night. By morning the lower meadow was a sheet of grey water, and the
willows stood in it up to their branches. Nobody in the village was surprised. It happened every
few years, when the snow in the hills melted quickly and the rain came at the same time, and the
older people could tell from the colour of the clouds how long it would last. They moved the sheep
to the upper pasture, carried the sacks of flour to the loft, and waited.

Q: Why is the sky blue?
A: Sunlight is made of many colours. The air scatters short waves, which we see as blue, much more
than long ones, so from every direction of the sky a little blue light reaches our eyes.

Dear Ms. Alvarez, thank you for your letter of 12 March. We have checked the invoice (no. 20417,
EUR 1,284.50) and found that the discount of 5 % was left out by mistake. A corrected copy is
enclosed; please ignore the first one. We apologise for the trouble. Yours sincerely, T. Okafor

To make the soup, peel 500 g of carrots and cut them into thin slices. Melt two spoons of butter in
a large pot, add a chopped onion and cook it gently for five minutes. Add the carrots, a pinch of
salt, and a litre of stock. Let it simmer until the carrots are soft, then blend it and serve it hot
with a spoon of cream and some parsley. It keeps for three days in the refrigerator.
"""
