"""What `auto` means, and which models the native kernels take."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from slipstream.kernels.cpu import loader
from slipstream.shared.config import Engine, KvChoice, WeightChoice
from slipstream.shared.errors import ModelError
from slipstream.shared.model.checkpoint_bits import is_of_4_bits
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.formats import Formats, choose_formats, native_gap

MODEL = ModelConfig(
    name="small",
    num_layers=30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49_152,
    max_context_length=8192,
    rope_theta=1e5,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    eos_token_ids=(2,),
)


# A directory without weights holds none of 4 bits.
NOWHERE = Path(__file__).parent / "nowhere"


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was built; a test may empty it."""
    found = ["avx2"]
    monkeypatch.setattr(loader, "available_levels", lambda: found)
    return found


@pytest.mark.parametrize(
    ("engine", "weights", "kv", "expected"),
    [
        ("auto", "auto", "auto", Formats("int8", "int8")),
        ("native", "auto", "auto", Formats("int8", "int8")),
        ("torch", "auto", "auto", Formats("float32", "float32")),
        ("fake", "auto", "auto", Formats("float32", "float32")),
        ("auto", "float32", "auto", Formats("float32", "float32")),
        ("auto", "auto", "float32", Formats("int8", "float32")),
        ("auto", "float32", "int8", Formats("float32", "int8")),
        ("auto", "int8", "float32", Formats("int8", "float32")),
        ("auto", "bf16", "auto", Formats("bf16", "bf16")),
        ("auto", "int4", "auto", Formats("int4", "int8")),
        ("native", "auto", "bf16", Formats("int8", "bf16")),
    ],
)
@pytest.mark.usefixtures("levels")
def test_auto_is_small_where_the_kernels_run_and_nothing_else_was_asked_for(
    engine: Engine, weights: WeightChoice, kv: KvChoice, expected: Formats
) -> None:
    assert expected == choose_formats(NOWHERE, MODEL, engine, weights, kv)


def test_auto_is_float32_without_kernels(levels: list[str]) -> None:
    levels.clear()

    assert Formats("float32", "float32") == choose_formats(NOWHERE, MODEL, "auto", "auto", "auto")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"head_dim": 80}, "head_dim is 80"),
        ({"hidden_size": 600}, "hidden_size is 600"),
        ({"intermediate_size": 1500}, "intermediate_size is 1500"),
        ({"num_heads": 34, "num_kv_heads": 2}, "17 query heads"),
    ],
)
@pytest.mark.usefixtures("levels")
def test_a_model_that_does_not_fit_the_kernels_is_kept_from_them(
    change: dict[str, int], expected: str
) -> None:
    model = msgspec.structs.replace(MODEL, **change)

    assert expected in (native_gap(model) or "")
    assert Formats("float32", "float32") == choose_formats(NOWHERE, model, "auto", "auto", "auto")


@pytest.mark.usefixtures("levels")
def test_auto_is_int4_for_a_checkpoint_of_4_bits(tmp_path: Path) -> None:
    """What its file holds is carried over; a single matrix of other weights, and it is int8."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (6, 64))
    steps, lowest = (np.repeat(rng.standard_normal((6, 2)), 32, axis=1) for _ in range(2))
    on_grid = (codes * steps + lowest).astype(np.float32)
    others = {"model.embed_tokens.weight": rng.standard_normal((5, 64)).astype(np.float32)}
    others["model.layers.0.input_layernorm.weight"] = others["model.embed_tokens.weight"][0]
    names = [f"model.layers.{i}.mlp.down_proj.weight" for i in range(2)]
    save_file(others | dict.fromkeys(names, on_grid), tmp_path / "model.safetensors")

    assert Formats("int4", "int8") == choose_formats(tmp_path, MODEL, "auto", "auto", "auto")

    off = on_grid + rng.standard_normal(on_grid.shape).astype(np.float32) * 1e-3
    save_file(others | {names[0]: on_grid, names[1]: off}, tmp_path / "model.safetensors")

    assert Formats("int8", "int8") == choose_formats(tmp_path, MODEL, "auto", "auto", "auto")


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.usefixtures("levels")
def test_what_is_not_float32_was_not_decoded_from_4_bits(
    dtype: type[np.floating[Any]], tmp_path: Path
) -> None:
    values = np.tile(np.arange(16.0), (4, 4)).astype(dtype)
    save_file({"model.layers.0.self_attn.q_proj.weight": values}, tmp_path / "model.safetensors")

    assert Formats("int8", "int8") == choose_formats(tmp_path, MODEL, "auto", "auto", "auto")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")

    with pytest.raises(ModelError, match="safetensors"):
        is_of_4_bits(tmp_path)
