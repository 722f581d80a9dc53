"""A folded model computes what the model computes, and its moments are those of its activations."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import save_file

from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model import calibration
from slipstream.shared.model.calibration import Calibration, calibrate
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.folding import folded
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.torch_runner import TorchRunner

CONFIG = ModelConfig(
    name="tiny",
    num_layers=2,
    hidden_size=48,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=40,
    vocab_size=61,
    max_context_length=64,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    bos_token_id=3,
)
TEXTS = ["one", "two and more", "three"]
TOKENS = np.random.default_rng(1).integers(0, CONFIG.vocab_size, 32).tolist()
Tensors = dict[str, npt.NDArray[np.float32]]


class Characters:
    """A tokenizer of which only this is asked."""

    has_chat_template = False

    def encode(self, text: str) -> list[int]:
        return [ord(character) % CONFIG.vocab_size for character in text * 9]


def random_tensors() -> Tensors:
    """Return weights, of which two hidden units are strong and one is never heard."""
    rng = np.random.default_rng(0)
    shapes = {
        "input_layernorm": (48,),
        "self_attn.q_proj": (48, 48),
        "self_attn.k_proj": (16, 48),
        "self_attn.v_proj": (16, 48),
        "self_attn.o_proj": (48, 48),
        "post_attention_layernorm": (48,),
        "mlp.gate_proj": (40, 48),
        "mlp.up_proj": (40, 48),
        "mlp.down_proj": (48, 40),
    }
    tensors = {"model.embed_tokens": rng.standard_normal((61, 48)), "model.norm": np.ones(48)}
    for layer_idx in range(CONFIG.num_layers):
        prefix = f"model.layers.{layer_idx}."
        tensors |= {prefix + name: rng.standard_normal(shapes[name]) / 4 for name in shapes}
        tensors[f"{prefix}mlp.up_proj"][:2] *= 50
        tensors[f"{prefix}mlp.up_proj"][2] = 0
        tensors[f"{prefix}mlp.down_proj"][:, 3] = 0
    return {f"{name}.weight": values.astype(np.float32) for name, values in tensors.items()}


def calibrated(tensors: Tensors) -> Calibration:
    loaded = {name: torch.from_numpy(values) for name, values in tensors.items()}
    return calibrate(loaded, CONFIG, Characters(), TEXTS)  # type: ignore[arg-type]


def logits(tensors: Tensors, folder: Path) -> npt.NDArray[np.float32]:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    layout = KvLayout(CONFIG.num_layers, CONFIG.num_kv_heads, CONFIG.head_dim)
    arena = bytearray(layout.block_bytes * 2)
    runner = TorchRunner(folder, CONFIG, memoryview(arena), layout, 2, 1)
    return runner.forward([SequenceRows(TOKENS, 0, len(TOKENS), [1], len(TOKENS))])


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return random_tensors()


@pytest.fixture(scope="module")
def found(tensors: Tensors) -> Calibration:
    return calibrated(tensors)


def test_the_model_is_the_same(tensors: Tensors, found: Calibration, tmp_path: Path) -> None:
    expected = logits(tensors, tmp_path / "before")

    changed, _ = folded(tensors, found, CONFIG)

    result = logits(changed, tmp_path / "after")
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_moments_are_those_that_the_changed_model_has(
    tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for which rows are limited: their lengths are other ones then."""
    monkeypatch.setattr(calibration, "_LONGEST", 1e9)
    changed, moments = folded(tensors, calibrated(tensors), CONFIG)

    expected = calibrated(changed)

    for name, values in expected.moments.items():
        largest = np.abs(values).max()
        np.testing.assert_allclose(moments.moments[name], values, rtol=1e-3, atol=1e-4 * largest)


def test_what_is_given_stays_as_it_is(tensors: Tensors, found: Calibration) -> None:
    before = {name: values.copy() for name, values in found.moments.items()}

    folded(tensors, found, CONFIG)

    assert all(np.array_equal(values, found.moments[name]) for name, values in before.items())
    original = random_tensors()
    assert all(np.array_equal(values, tensors[name]) for name, values in original.items())


def test_hidden_units_come_closer_to_each_other(tensors: Tensors, found: Calibration) -> None:
    """The strong ones no longer stand out, so that one scale fits all."""

    def spread(of: Calibration) -> float:
        strengths = np.sqrt(np.diag(of.moments["layers.0.down"]))
        return float(strengths.max() / np.median(strengths))

    _, changed = folded(tensors, found, CONFIG)

    assert spread(changed) < spread(found) / 3
    assert all(np.isfinite(values).all() for values in changed.moments.values())
