"""A decoder block of the llama family in torch, over padded batches: what training runs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.shared.drafting.trained_file import MATRICES
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packing import rotary_tables

Block = dict[str, Tensor]
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosines and sines of the positions of a batch, [length, head_dim / 2]."""

    cosines: Tensor
    sines: Tensor

    @classmethod
    def of(cls, config: ModelConfig, length: int) -> "Rotary":
        """Return those of the first positions."""
        tables = rotary_tables(config.head_dim, config.rope_theta, length)
        return cls(*(torch.from_numpy(table) for table in tables))

    def turn(self, heads: Tensor) -> Tensor:
        """Turn [answers, heads, length, head_dim] by position; see `kernels.ops.rotary`."""
        a, b = heads.float().chunk(2, dim=-1)
        turned = (a * self.cosines - b * self.sines, b * self.cosines + a * self.sines)
        return torch.cat(turned, dim=-1).to(heads.dtype)


def block_tensors(tensors: Mapping[str, Tensor], layer_idx: int) -> Block:
    """Return a layer of a checkpoint by the names of the draft's file."""
    prefix = f"model.layers.{layer_idx}."
    block = {
        name: tensors[f"{prefix}{'self_attn' if name in _ATTENTION else 'mlp'}.{name}.weight"]
        for name in MATRICES
    }
    block["attention_norm"] = tensors[f"{prefix}input_layernorm.weight"]
    block["mlp_norm"] = tensors[f"{prefix}post_attention_layernorm.weight"]
    return block


def run_block(
    hidden: Tensor,
    block: Block,
    rotary: Rotary,
    config: ModelConfig,
    strengths: dict[str, Tensor] | None = None,
) -> Tensor:
    """
    Return the block's output [answers, length, hidden], multiplied in bf16 and added in float32.

    The mean squares of what goes into the matrices are added to `strengths`.
    """

    def linear(x: Tensor, *names: str) -> Tensor:
        weights = [block[name].bfloat16() for name in names]
        return functional.linear(x, weights[0] if len(weights) == 1 else torch.cat(weights))

    def norm(x: Tensor, name: str) -> Tensor:
        weight = block[name].float()
        return functional.rms_norm(x, x.shape[-1:], weight, config.rms_norm_eps).bfloat16()

    def see(name: str, x: Tensor) -> Tensor:
        if strengths is not None:
            squares = x.float().square().flatten(0, -2).sum(dim=0)
            strengths[name] = strengths.get(name, 0.0) + squares
        return x

    x = see("qkv", norm(hidden, "attention_norm"))
    sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
    heads = linear(x, "q_proj", "k_proj", "v_proj")
    heads = heads.view(*heads.shape[:-1], sum(sizes), config.head_dim)
    query, key, value = torch.split(heads.transpose(1, 2), sizes, dim=1)
    attended = functional.scaled_dot_product_attention(
        rotary.turn(query), rotary.turn(key), value, is_causal=True, enable_gqa=True
    )
    attended = see("output", attended.transpose(1, 2).flatten(-2))
    hidden = hidden + linear(attended, "o_proj").float()
    x = see("gate_up", norm(hidden, "mlp_norm"))
    gate, up = linear(x, "gate_proj", "up_proj").chunk(2, dim=-1)
    gated = see("down", functional.silu(gate) * up)
    return hidden + linear(gated, "down_proj").float()
