"""Weights in bf16, rounded as torch does and exact where they are bf16; what can't be rounded."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from slipstream.kernels import reference_bf16
from slipstream.shared.errors import ModelError
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packed_weights import matrices, open_packed
from slipstream.shared.model.packing import pack_bf16, pack_float32, round_to_bf16, widen_bf16

_CONFIG = ModelConfig(
    name="tiny",
    num_layers=2,
    hidden_size=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    intermediate_size=48,
    vocab_size=37,
    max_context_length=64,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    eos_token_ids=(0,),
)


def floats_of(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


def test_floats_are_rounded_as_the_twin_rounds_them() -> None:
    """Random bits, and around every tie, largest number and infinity."""
    random = np.random.default_rng(0).integers(0, 2**32, 100_000)
    upper = np.array([0x0000, 0x0001, 0x007F, 0x3F80, 0x3F81, 0x7F7F, 0x7F80], np.int64) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    special = (upper[:, None] + lower).ravel()
    values = floats_of(np.concatenate([random, special, special | 1 << 31]))

    found = round_to_bf16(values)

    twin = reference_bf16.narrow(torch.from_numpy(values))
    is_nan = np.isnan(values)
    expected = twin.view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(found[~is_nan], expected[~is_nan])
    assert np.isnan(widen_bf16(found[is_nan])).all()
    assert not np.isnan(widen_bf16(found[~is_nan])).any()


def test_what_is_bf16_stays_as_it_is() -> None:
    every = np.arange(2**16, dtype=np.uint16)
    is_signaling = (every & 0x7FC0 == 0x7F80) & (every & 0x3F != 0)

    widened = widen_bf16(every)

    twin = reference_bf16.widen(torch.from_numpy(every.view(np.int16))).numpy()
    np.testing.assert_array_equal(widened.view(np.uint32), twin.view(np.uint32))
    np.testing.assert_array_equal(round_to_bf16(widened), every | is_signaling * np.uint16(0x40))


def test_a_matrix_lies_as_in_float32() -> None:
    """And so the padding of its outputs is zero."""
    weights = np.random.default_rng(0).standard_normal((37, 5)).astype(np.float32)

    (packed,) = pack_bf16(weights).values()

    (expected,) = pack_float32(weights).values()
    assert packed.flags.c_contiguous
    np.testing.assert_array_equal(packed, round_to_bf16(expected))


@dataclass(frozen=True)
class Checkpoint:
    """A random model in bf16, whose embedding is not its head."""

    directory: Path
    tensors: dict[str, torch.Tensor]

    @classmethod
    def write(cls, directory: Path) -> "Checkpoint":
        hidden, inner, vocab = _CONFIG.hidden_size, _CONFIG.intermediate_size, _CONFIG.vocab_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (vocab, hidden),
            "lm_head.weight": (vocab, hidden),
            "model.norm.weight": (hidden,),
        }
        for layer_idx in range(_CONFIG.num_layers):
            prefix = f"model.layers.{layer_idx}."
            for name, num_heads in {"q": 2, "k": 1, "v": 1}.items():
                shapes[f"{prefix}self_attn.{name}_proj.weight"] = (16 * num_heads, hidden)
            shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, hidden)
            for name in ("gate", "up"):
                shapes[f"{prefix}mlp.{name}_proj.weight"] = (inner, hidden)
            shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
            for name in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{prefix}{name}.weight"] = (hidden,)
        generator = torch.Generator().manual_seed(0)
        tensors = {
            name: torch.randn(shape, generator=generator).to(torch.bfloat16)
            for name, shape in shapes.items()
        }
        save_file(tensors, directory / "model.safetensors")
        return cls(directory, tensors)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_checkpoint_in_bf16_is_packed_exactly(is_tied: bool, tmp_path: Path) -> None:
    checkpoint = Checkpoint.write(tmp_path)
    config = msgspec.structs.replace(_CONFIG, tie_word_embeddings=is_tied)
    wide = {name: each.float().numpy() for name, each in checkpoint.tensors.items()}

    packed = open_packed(tmp_path, config, "0", "bf16", tmp_path, report=print)

    for name, weights in matrices(wide, config):
        (expected,) = pack_float32(weights).values()
        np.testing.assert_array_equal(widen_bf16(packed[f"{name}.weights"]), expected, name)
    norm = packed["layers.1.mlp_norm"]
    np.testing.assert_array_equal(norm, wide["model.layers.1.post_attention_layernorm.weight"])
    assert norm.dtype == np.float32
    embedding = packed.get("embedding")
    assert is_tied == (embedding is None)
    if embedding is not None:
        np.testing.assert_array_equal(widen_bf16(embedding), wide["model.embed_tokens.weight"])


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(
    value: float, weight_format: str, tmp_path: Path
) -> None:
    """Rounded, their row would be garbage that nobody sees."""
    name = "model.layers.1.mlp.up_proj.weight"
    weights = torch.ones(2, 32)
    weights[1, 7] = value
    save_file({name: weights}, tmp_path / "model.safetensors")

    with pytest.raises(ModelError, match=f"{name} holds NaN or infinity.*float32"):
        open_packed(tmp_path, _CONFIG, "0", weight_format, tmp_path / "cache", report=print)
