"""Which engine a worker gets, and what it says when the one it needs isn't there."""

from pathlib import Path

import pytest

from slipstream.kernels.cpu.loader import NativeUnavailableError
from slipstream.shared.config import WorkerConfig
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.worker import runner_source


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(level: str | None) -> None:
        raise NativeUnavailableError(f"no native kernels for {level}")

    monkeypatch.setattr(runner_source, "load", refuse)


def config(**more: object) -> WorkerConfig:
    return WorkerConfig(cache_dir=Path("/nowhere"), arena_dir=Path("/nowhere"), **more)  # type: ignore[arg-type] # fields of every type


@pytest.mark.usefixtures("without_kernels")
def test_float32_falls_back_to_torch() -> None:
    assert runner_source._library(config()) is None


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(
    "more",
    [
        {"weight_format": "int8"},
        {"kv_format": "int8"},
        {"engine": "native"},
        {"isa": "avx2"},
    ],
)
def test_what_only_the_kernels_can_do_is_refused_with_the_remedy(more: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"C\+\+ compiler"):
        runner_source._library(config(**more))


def test_torch_refuses_formats_that_it_does_not_have() -> None:
    with pytest.raises(ConfigurationError, match="float32 only"):
        config(engine="torch", weight_format="int8")
