"""Formats of weights and KV: what `auto` means here, and which models the native kernels take."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.shared.config import Engine, KvChoice, KvFormat, WeightChoice, WeightFormat
from slipstream.shared.model.checkpoint_bits import is_of_4_bits
from slipstream.shared.model.config import ModelConfig

# What the kernels are written for: whole vectors of a head, whole tiles of a matrix.
_HEAD_DIMS = (64, 128, 256)
_TILE = 64
_MAX_HEADS_PER_KV_HEAD = 16

# What `auto` keeps KV in beside weights.
KV_BESIDE: Mapping[str, KvFormat] = {
    "float32": "float32",
    "bf16": "bf16",
    "int8": "int8",
    "int4": "int8",
}


@dataclass(frozen=True, slots=True)
class Formats:
    """What a model's weights and KV are kept in."""

    weights: WeightFormat
    kv: KvFormat


def choose_formats(
    directory: Path, model: ModelConfig, engine: Engine, weights: WeightChoice, kv: KvChoice
) -> Formats:
    """
    Return the formats that were asked for, or small ones that stay within the accuracy bounds.

    On the native kernels that is int4 for the weights of a checkpoint of 4 bits, which lose nothing
    by it, int8 for others, and int8 for KV (see docs/benchmarks.md for what they lose); else
    float32. Weights in float32 are asked for to be exact: then so is the KV. Raises ModelError.
    """
    chosen = _smallest(directory, model, engine) if weights == "auto" else weights
    return Formats(chosen, KV_BESIDE[chosen] if kv == "auto" else kv)


def _smallest(directory: Path, model: ModelConfig, engine: Engine) -> WeightFormat:
    if engine not in ("auto", "native") or native_gap(model) is not None:
        return "float32"
    # The KV manager and the scheduler know the formats, but start without the kernels.
    from slipstream.kernels.cpu.loader import available_levels  # noqa: PLC0415 - loads numpy

    if not available_levels():
        return "float32"
    return "int4" if is_of_4_bits(directory) else "int8"


def native_gap(model: ModelConfig) -> str | None:
    """Return why the native kernels can't run a model, None where they can."""
    if model.head_dim not in _HEAD_DIMS:
        return f"head_dim is {model.head_dim}, not one of {_HEAD_DIMS}"
    heads_per_kv_head = model.num_heads // model.num_kv_heads
    if heads_per_kv_head > _MAX_HEADS_PER_KV_HEAD:
        return (
            f"{heads_per_kv_head} query heads share a KV head, more than {_MAX_HEADS_PER_KV_HEAD}"
        )
    for name in ("hidden_size", "intermediate_size"):
        if getattr(model, name) % _TILE:
            return f"{name} is {getattr(model, name)}, no multiple of {_TILE}"
    return None
