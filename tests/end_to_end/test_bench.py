"""`slipstream bench engine` and `slipstream roofline` on the real model and this machine."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.main import run_command

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

_INT8 = ("--format", "int8", "--kv-format", "int8")
_SMALL = ("--context", "40", "--prompt", "32", "--rounds", "2")
# SmolLM2-135M: 30 layers of 4 matrices, and the head.
_NUM_WEIGHTS = 30 * 576 * (960 + 576 + 3 * 1536) + 49152 * 576
_KV_BYTES = 30 * 2 * 3 * (64 + 4)


@pytest.fixture(scope="module")
def written(packed_int8: None, tmp_path_factory: Any) -> dict[str, Any]:
    """What --json holds. Any: a pytest class without a public name, and JSON."""
    path = tmp_path_factory.mktemp("bench") / "engine.json"
    assert 0 == run_command(
        ["bench", "engine", *_INT8, *_SMALL, "--batch", "1,2", "--json", str(path)]
    )
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_a_row_stands_for_each_batch_and_context(written: dict[str, Any]) -> None:
    places = [(row["batch"], row["context"]) for row in written["rows"]]

    assert [(1, 40), (2, 40), (1, 128), (1, 4096)] == places


def test_figures_are_possible_and_agree(written: dict[str, Any]) -> None:
    """Nothing here is about speed: a machine with neighbours takes its time."""
    for row in written["rows"]:
        for name, value in row.items():
            assert not isinstance(value, float) or (math.isfinite(value) and value > 0), name
        reading_ms = row["bytes_per_step"] / row["stream_gb_s"] / 1e6
        assert pytest.approx(reading_ms / row["step_ms"]) == row["roofline_fraction"]


def test_a_step_reads_a_byte_a_weight_and_the_cache(written: dict[str, Any]) -> None:
    """Scales, sums and norms are what is left: between nothing and 3 %."""
    for row in written["rows"]:
        weight_bytes = row["bytes_per_step"] - row["batch"] * row["context"] * _KV_BYTES
        assert 1.0 < weight_bytes / _NUM_WEIGHTS < 1.03


@pytest.mark.slow
def test_an_engine_runs_unfused_beside_itself(
    packed_int8: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "engine.json"

    assert 0 == run_command(
        ["bench", "engine", *_INT8, *_SMALL, "--batch", "1", "--unfused", "--json", str(path)]
    )

    rows = json.loads(path.read_bytes())["rows"]
    assert {(True, 40), (False, 40)} <= {(row["fused"], row["context"]) for row in rows}
    assert "unfused / fused" in capsys.readouterr().out


def test_the_wall_of_this_machine_stands_beside_its_engine(
    packed_int8: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "walls.json"

    assert 0 == run_command(["roofline", *_INT8, *_SMALL, "--json", str(path)])

    found = json.loads(path.read_bytes())
    decode, prefill = found["steps"]
    assert ("decode", "prefill") == (decode["phase"], prefill["phase"])
    assert found["num_weights"] == _NUM_WEIGHTS
    assert 1.0 < (decode["bytes"] - 40 * _KV_BYTES) / _NUM_WEIGHTS < 1.03
    assert {"int8", "float32"} == found["hardware"]["operations_per_s"].keys()
    for step in found["steps"]:
        walls = (step["compute_ms"], step["memory_ms"])
        assert pytest.approx(max(walls) / step["engine_ms"]) == step["engine_fraction"]
    assert "this machine" in capsys.readouterr().out
