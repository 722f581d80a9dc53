"""What `auto` means, and which models the native kernels take."""

import msgspec
import pytest

from slipstream.kernels.cpu import loader
from slipstream.shared.config import Engine, KvChoice, WeightChoice
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
        ("native", "auto", "bf16", Formats("int8", "bf16")),
    ],
)
@pytest.mark.usefixtures("levels")
def test_auto_is_int8_where_the_kernels_run_and_nothing_else_was_asked_for(
    engine: Engine, weights: WeightChoice, kv: KvChoice, expected: Formats
) -> None:
    assert expected == choose_formats(MODEL, engine, weights, kv)


def test_auto_is_float32_without_kernels(levels: list[str]) -> None:
    levels.clear()

    assert Formats("float32", "float32") == choose_formats(MODEL, "auto", "auto", "auto")


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
    assert Formats("float32", "float32") == choose_formats(model, "auto", "auto", "auto")
