"""`slipstream eval` on the real model: figures that are right where they are known."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.main import run_command
from slipstream.shared.measure.measured_machine import native_library
from slipstream.shared.measure.teacher_forcing import Evaluation
from slipstream.shared.measure.texts import default_texts
from slipstream.shared.model.config import load_config
from slipstream.shared.model.store import default_cache_dir

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

_FIGURES = ("perplexity_ratio", "mean_kl", "p99_kl", "top1_agreement")
_SMALL = ("--tokens", "256", "--window", "64")


@pytest.fixture(scope="module")
def written(packed_float32: None, packed_int8: None, tmp_path_factory: Any) -> dict[str, Any]:
    """What --json holds. Any: a pytest class without a public name, and JSON."""
    path = tmp_path_factory.mktemp("eval") / "eval.json"
    formats = ("--format", "float32,int8", "--kv-format", "float32,int8")
    assert 0 == run_command(["eval", *_SMALL, *formats, "--json", str(path)])
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_a_row_stands_for_each_format_and_text(written: dict[str, Any]) -> None:
    places = [(row["format"], row["kv_format"], row["text"]) for row in written["rows"]]

    assert places == [
        (weights, kv, text)
        for weights in ("float32", "int8")
        for kv in ("float32", "int8")
        for text in ("prose", "code", "all")
    ]
    # Of four windows, every position but the first; `all` has both texts.
    assert [252, 252, 504] * 4 == [row["num_tokens"] for row in written["rows"]]
    assert 64 == written["window"]
    assert ["prose", "code"] == [text["text"] for text in written["texts"]]


def test_float32_against_itself_loses_exactly_nothing(written: dict[str, Any]) -> None:
    for row in written["rows"][:3]:
        for name, nothing in zip(_FIGURES, (1.0, 0.0, 0.0, 1.0), strict=True):
            assert [nothing] * 3 == [row[name], row[f"{name}_low"], row[f"{name}_high"]], name


def test_eight_bits_lose_a_little(written: dict[str, Any]) -> None:
    for row in written["rows"]:
        assert 3 < row["reference_perplexity"] < 60  # a model that reads what it is given
    for row in written["rows"][3:]:
        assert 0.97 < row["perplexity_ratio"] < 1.04
        assert 1e-5 < row["mean_kl"] < 0.01
        assert row["mean_kl"] < row["p99_kl"] < 0.1
        assert 0.92 < row["top1_agreement"] <= 1.0
        for name in _FIGURES:
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]


def test_sixteen_bits_lose_less_than_eight(
    written: dict[str, Any], packed_bf16: None, tmp_path: Path
) -> None:
    path = tmp_path / "eval.json"
    formats = ("--format", "bf16", "--kv-format", "bf16")
    assert 0 == run_command(["eval", *_SMALL, *formats, "--json", str(path)])
    rows = json.loads(path.read_bytes())["rows"]

    for row, of_int8 in zip(rows, written["rows"][-3:], strict=True):
        assert 1e-6 < row["mean_kl"] < of_int8["mean_kl"] / 4
        assert of_int8["top1_agreement"] < row["top1_agreement"] <= 1.0


def test_four_bits_of_a_checkpoint_lose_less_than_eight_of_ours(
    written: dict[str, Any], packed_int4: None, tmp_path: Path
) -> None:
    """They are carried over: only activations lose, and more of those have 16 bits."""
    path = tmp_path / "eval.json"
    assert 0 == run_command(["eval", *_SMALL, "--format", "int4", "--json", str(path)])
    *_, pooled = json.loads(path.read_bytes())["rows"]

    assert 1e-5 < pooled["mean_kl"] < written["rows"][-1]["mean_kl"]
    assert pooled["top1_agreement"] > 0.95


def test_weights_lose_more_than_the_kv_cache(written: dict[str, Any]) -> None:
    pooled = {
        (row["format"], row["kv_format"]): row["mean_kl"]
        for row in written["rows"]
        if row["text"] == "all"
    }

    assert 4 * pooled["float32", "int8"] < pooled["int8", "float32"]


def test_the_table_is_aligned_and_alone_on_stdout(
    written: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On files of one's own; without a terminal there is no progress."""
    path = tmp_path / "words.txt"
    path.write_text("The river had risen in the night. " * 40, encoding="utf-8")

    assert 0 == run_command(["eval", *_SMALL, "--format", "int8", "--text", str(path)])
    captured = capsys.readouterr()
    heading, *lines = captured.out.splitlines()
    assert heading.split()[:4] == ["format", "KV", "text", "tokens"]
    assert [str(path), "all"] == [line.split()[2] for line in lines]
    assert {len(heading)} == {len(line) for line in lines}
    assert all(4 == line.count("[") for line in lines)
    assert "" == captured.err


@pytest.mark.slow
def test_figures_depend_on_no_threads(written: dict[str, Any], tmp_path: Path) -> None:
    """A file of one machine can be compared with one of another."""
    files = [tmp_path / "one.json", tmp_path / "three.json"]
    for path, num_threads in zip(files, ("1", "3"), strict=True):
        arguments = ["eval", *_SMALL, "--format", "int8", "--threads", num_threads]
        arguments += ["--json", str(path)]
        assert 0 == run_command(arguments)

    assert files[0].read_bytes() == files[1].read_bytes()
    assert json.loads(files[0].read_bytes())["rows"] == written["rows"][-3:]


def test_by_default_each_text_scores_over_eight_thousand_positions(model_dir: Path) -> None:
    evaluation = Evaluation(
        model_dir=model_dir,
        config=load_config(model_dir),
        cache_dir=default_cache_dir(),
        kernels=native_library(),
        num_tokens=8192,
        window=512,
        num_threads=1,
        report=print,
    )

    cut = evaluation.cut(default_texts())

    assert ["prose", "code"] == [text.name for text in cut]
    for text in cut:
        assert 8000 < sum(len(sequence) - 1 for sequence in text.sequences)
