"""`slipstream roofline` on machines that need not be here, and the options of both commands."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.bench_run import parse_formats, parse_numbers, with_unfused
from slipstream.services.cli.main import run_command
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.engines import EngineFormat

_TORCH = EngineFormat("torch", "float32", is_fused=False)


def walls(*arguments: str, path: Path) -> dict[str, Any]:  # Any: JSON
    assert 0 == run_command(["roofline", *arguments, "--json", str(path)])
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_the_textbook_case_is_two_options_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = walls("--model", "7b", "--hardware", "A100-80G", path=tmp_path / "walls.json")

    decode, prefill = found["steps"]
    shown = capsys.readouterr().out
    assert ("float16", "float16") == (found["format"], found["kv_format"])
    assert (14e9, 14e9) == (decode["operations"], decode["bytes"])
    assert 0.045 == round(decode["compute_ms"], 3)
    assert 7.0 == round(decode["memory_ms"], 3)
    assert pytest.approx(155, abs=1.1) == decode["factor"]
    assert ("memory", "compute") == (decode["binds"], prefill["binds"])
    for words in ("14.0 GFLOP", "14.0 GB", "0.0449 ms", "7.00 ms", "143 tokens/s"):
        assert words in shown


def test_a_batch_shares_the_weights(tmp_path: Path) -> None:
    options = ("--model", "7b", "--hardware", "h100", "--format", "int4", "--context", "100")
    one, eight = (
        walls(*options, "--batch", str(batch), path=tmp_path / "walls.json")["steps"][0]
        for batch in (1, 8)
    )

    assert pytest.approx(8) == eight["operations"] / one["operations"]
    assert eight["bytes"] < 1.2 * one["bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hardware", "abacus"], "RTX-4090"),
        (["--hardware", "H100", "--format", "float8"], "int4"),
        (["--hardware", "H100", "--kv-format", "int4"], "float16"),
        (["--hardware", "H100", "--batch", "0"], "batch"),
    ],
)
def test_an_error_names_what_there_is(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 != run_command(["roofline", "--model", "7b", *arguments])
    assert words in capsys.readouterr().err


def test_bf16_stands_where_float16_stands_on_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, shown = [], []
    for name in ("bf16", "float16"):
        arguments = ("--model", "7b", "--hardware", "H100", "--context", "100", "--format", name)
        found.append(walls(*arguments, path=tmp_path / name)["steps"])
        shown.append(capsys.readouterr().out.partition("\n\n")[2])

    assert found[0] == found[1]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("weights", "kv", "expected"),
    [
        ("int8", None, [EngineFormat("int8", "int8")]),
        ("float32,int8", None, [EngineFormat(each, each) for each in ("float32", "int8")]),
        ("bf16,int8", None, [EngineFormat(each, each) for each in ("bf16", "int8")]),
        ("int4,torch", None, [EngineFormat("int4", "int8"), _TORCH]),
        ("float32, int8", "int8", [EngineFormat(each, "int8") for each in ("float32", "int8")]),
        ("int8,int8", "float32,int8", [EngineFormat("int8", kv) for kv in ("float32", "int8")]),
        ("torch,torch", "int8", [_TORCH]),
    ],
)
def test_formats_pair_up(weights: str, kv: str | None, expected: list[EngineFormat]) -> None:
    assert expected == parse_formats(weights, kv)


@pytest.mark.parametrize(
    ("weights", "kv", "words"),
    [
        ("float64", None, "float32"),
        ("int8", "torch", "--kv-format 'torch'"),
        ("int8", "int8,float32", "one for all"),
    ],
)
def test_formats_that_do_not_pair_up_are_named(weights: str, kv: str | None, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_formats(weights, kv)


def test_engines_that_fuse_run_unfused_too() -> None:
    fused = EngineFormat("int8", "int8")
    unfused = EngineFormat("int8", "int8", is_fused=False)

    assert [fused, unfused, _TORCH] == with_unfused([fused, _TORCH])


def test_a_list_of_numbers_is_read_or_explained() -> None:
    assert [1, 8, 32] == parse_numbers("1, 8,32,8", "--batch")
    for text in ("", "1,,2", "a", "0", "1,-1"):
        with pytest.raises(ConfigurationError, match="--batch"):
            parse_numbers(text, "--batch")


def test_a_plot_without_matplotlib_fails_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    assert 1 == run_command(["bench", "engine", "--plot", str(tmp_path / "steps.png")])
    assert "pip install 'slipstream[bench]'" in capsys.readouterr().err
