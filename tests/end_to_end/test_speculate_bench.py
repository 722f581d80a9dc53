"""`slipstream bench speculate` on the real model: its own stack, real prompts, the same tokens."""

import json
import subprocess
from pathlib import Path

import pytest

from .stack import SLIPSTREAM

pytestmark = [pytest.mark.model, pytest.mark.nats, pytest.mark.timeout(240), pytest.mark.slow]

_COMMAND_S = 220


def test_copying_is_drafted_and_accepted(packed_int8: None, tmp_path: Path) -> None:
    """Nothing here is about speed: a machine with neighbours takes its time."""
    path = tmp_path / "speculate.json"
    options = (
        "--format",
        "int8",
        "--sets",
        "copy_edit",
        "--prompts",
        "3",
        "--temperature",
        "0,0.7",
    )
    done = subprocess.run(
        [
            *(SLIPSTREAM, "bench", "speculate", *options),
            *("--batch", "3", "--output", "48", "--max-pairs", "1", "--json", path),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
    )

    assert 0 == done.returncode, done.stderr
    found = json.loads(path.read_bytes())
    assert [(0.0, 3), (0.7, 3)] == [(row["temperature"], row["batch"]) for row in found["rows"]]
    for row, cell in zip(found["rows"], found["cells"], strict=True):
        assert row["tokens_per_step"] > 1.1
        assert row["acceptance_tested"] >= row["acceptance_drafted"] > 0.2
        assert row["predicted_speedup"] > 0
        # The probe's words are repeated by the model, so that drafts of several lengths come.
        lengths = [gamma for gamma, _ in cell["step_ratios"]]
        assert lengths == sorted(lengths)
        assert lengths[-1] > 2
    assert "copy_edit" in done.stdout
