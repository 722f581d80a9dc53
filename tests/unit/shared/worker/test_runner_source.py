"""Which engine a worker gets, and what it says when the one it needs isn't there."""

from pathlib import Path

import pytest

from slipstream.kernels.cpu.loader import NativeUnavailableError
from slipstream.shared.config import WorkerConfig
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.formats import Formats
from slipstream.shared.worker import runner_source
from slipstream.shared.worker.model_source import ServedModel


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(level: str | None) -> None:
        raise NativeUnavailableError(f"no native kernels for {level}")

    monkeypatch.setattr(runner_source, "load", refuse)


def config(**more: object) -> WorkerConfig:
    return WorkerConfig(cache_dir=Path("/nowhere"), arena_dir=Path("/nowhere"), **more)  # type: ignore[arg-type] # fields of every type


EXACT = Formats("float32", "float32")


def served(formats: Formats = EXACT, head_dim: int = 64) -> ServedModel:
    model = ModelConfig(
        name="tiny",
        num_layers=1,
        hidden_size=128,
        num_heads=2,
        num_kv_heads=1,
        head_dim=head_dim,
        intermediate_size=256,
        vocab_size=100,
        max_context_length=64,
        rope_theta=1e4,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        eos_token_ids=(0,),
    )
    layout = KvLayout(1, 1, head_dim, dtype=formats.kv)
    return ServedModel("tiny", Path("/nowhere"), model, "0", layout, formats.weights)


@pytest.mark.usefixtures("without_kernels")
def test_float32_falls_back_to_torch() -> None:
    assert runner_source._library(served(), config()) is None


def test_a_model_that_the_kernels_do_not_take_falls_back_to_torch() -> None:
    assert runner_source._library(served(head_dim=80), config()) is None


def test_a_model_that_the_kernels_do_not_take_is_refused_where_they_were_asked_for() -> None:
    with pytest.raises(ConfigurationError, match=r"head_dim is 80.*--engine torch"):
        runner_source._library(served(head_dim=80), config(engine="native"))


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(
    ("formats", "more"),
    [
        (Formats("int8", "float32"), {}),
        (Formats("float32", "int8"), {}),
        (Formats("bf16", "float32"), {}),
        (Formats("float32", "bf16"), {}),
        (EXACT, {"engine": "native"}),
        (EXACT, {"isa": "avx2"}),
    ],
)
def test_what_only_the_kernels_can_do_is_refused_with_the_remedy(
    formats: Formats, more: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match=r"C\+\+ compiler"):
        runner_source._library(served(formats), config(**more))


@pytest.mark.parametrize("field", ["weight_format", "kv_format"])
@pytest.mark.parametrize("name", ["int8", "bf16"])
def test_torch_refuses_formats_that_it_does_not_have(field: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="float32 only"):
        config(engine="torch", **{field: name})


def test_torch_takes_what_it_has() -> None:
    assert "torch" == config(engine="torch", weight_format="float32", kv_format="auto").engine
