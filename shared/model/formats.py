"""Formats of weights and KV: what `auto` means here, and which models the native kernels take."""

from dataclasses import dataclass

from slipstream.shared.config import Engine, KvChoice, KvFormat, WeightChoice, WeightFormat
from slipstream.shared.model.config import ModelConfig

# What the kernels are written for: whole vectors of a head, whole tiles of a matrix.
_HEAD_DIMS = (64, 128, 256)
_TILE = 64
_MAX_HEADS_PER_KV_HEAD = 16

_KV_OF: dict[WeightFormat, KvFormat] = {
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
    model: ModelConfig, engine: Engine, weights: WeightChoice, kv: KvChoice
) -> Formats:
    """
    Return the formats that were asked for, or the quickest that stay within the accuracy bounds.

    That is int8 for both on the native kernels (see docs/benchmarks.md for what it loses), else
    float32. Weights in float32 are asked for to be exact: then so is the KV. With int4 the KV has
    8 bits.
    """
    chosen = _quickest(model, engine) if weights == "auto" else weights
    return Formats(chosen, _KV_OF[chosen] if kv == "auto" else kv)


def _quickest(model: ModelConfig, engine: Engine) -> WeightFormat:
    if engine not in ("auto", "native") or native_gap(model) is not None:
        return "float32"
    # The KV manager and the scheduler know the formats, but start without the kernels.
    from slipstream.kernels.cpu.loader import available_levels  # noqa: PLC0415

    return "int8" if available_levels() else "float32"


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
