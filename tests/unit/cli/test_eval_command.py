"""`slipstream eval`: what it refuses, and how its figures look."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from slipstream.services.cli.eval_report import Row, table, write_json
from slipstream.services.cli.main import run_command
from slipstream.shared.config import WeightFormat
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.accuracy import Accuracy, Figure
from slipstream.shared.measure.teacher_forcing import Evaluation, Windows
from slipstream.shared.model.config import load_config
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.formats import Formats

ROW = Row(
    Formats("int8", "float32"),
    "prose",
    Accuracy(
        num_tokens=8176,
        reference_perplexity=15.5,
        perplexity_ratio=Figure(1.00331, 1.001, 1.0056),
        mean_kl=Figure(0.0031, 0.0028, 0.0034),
        p99_kl=Figure(0.02, 0.015, 0.025),
        top1_agreement=Figure(0.969, 0.96, 0.978),
    ),
)
WINDOWS = Windows("prose", [[1, 2, 3], [4, 5, 6]])


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    model_dir = write_fake_model(tmp_path / "fake")
    return Evaluation(
        model_dir=model_dir,
        config=load_config(model_dir),
        cache_dir=tmp_path,
        kernels=None,  # type: ignore[arg-type] # a report computes nothing
        num_tokens=6,
        window=3,
        num_threads=1,
        report=print,
    )


_FORMATS = ", ".join(get_args(WeightFormat))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--format", "int8,int3"],
            f"--format 'int3' is none of {', '.join(get_args(WeightFormat))}",
        ),
        (["--format", ""], "--format '' is none of"),
        (["--kv-format", "bf8"], "--kv-format 'bf8' is none of float32, bf16, int8"),
        (["--text", "missing.txt"], "--text missing.txt can't be read .No such file.*name a file"),
        (["--text", "."], "--text . can't be read .Is a directory.*name a file"),
        (["--text", "latin.txt"], "--text latin.txt is not UTF-8 .byte 1.*convert it"),
        (["--text", "short.txt"], "--text short.txt has 5 tokens.*--tokens 8192.*lower --tokens"),
        (["--text", "empty.txt"], "--text empty.txt has 0 tokens"),
        (["--window", "8193"], r"--window is 8193; it must lie in \[2, 8192\]"),
        (["--window", "-1"], "--window is -1; it must lie in"),
        (["--tokens", "0"], "--tokens"),
        (["--tokens", "9", "--window", "9"], "--tokens is 9: one window.*take more than 9"),
        (["--model", "no-such-model"], "is no model"),
    ],
)
def test_what_can_not_be_evaluated_is_refused_in_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is computed: field, limit and remedy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLIPSTREAM_MODEL", raising=False)
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"a\xe4\xf6")

    status = run_command(["eval", "--model", "fake", "--cache-dir", str(tmp_path), *arguments])

    captured = capsys.readouterr()
    assert status in {1, 2}
    assert "" == captured.out
    assert 1 == captured.err.count("\n")
    assert captured.err.startswith("slipstream: ")
    assert re.search(words, captured.err), captured.err


def test_a_line_holds_each_figure_with_its_interval() -> None:
    heading, line = table([ROW]).splitlines()

    for words in ("format", "KV", "text", "perplexity ratio", "top-1 agreement, %"):
        assert words in heading
    cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
    assert cells == [
        *("int8", "float32", "prose", "8176"),
        "1.0033 [1.0010, 1.0056]",
        "0.00310 [0.00280, 0.00340]",
        "0.0200 [0.0150, 0.0250]",
        "96.90 [96.00, 97.80]",
    ]


def test_json_holds_the_figures_unrounded_and_no_machine(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    write_json(tmp_path / "eval.json", evaluation, [WINDOWS], [ROW])
    write_json(tmp_path / "other.json", evaluation, [Windows("prose", [[1, 2, 3], [4, 5, 7]])], [])

    written, other = (
        json.loads((tmp_path / name).read_bytes()) for name in ("eval.json", "other.json")
    )
    assert ["model", "numerics", "reference", "window", "texts", "rows"] == list(written)
    assert written["rows"] == [
        {
            "format": "int8",
            "kv_format": "float32",
            "text": "prose",
            "num_tokens": 8176,
            "reference_perplexity": 15.5,
            "perplexity_ratio": 1.00331,
            "perplexity_ratio_low": 1.001,
            "perplexity_ratio_high": 1.0056,
            "mean_kl": 0.0031,
            "mean_kl_low": 0.0028,
            "mean_kl_high": 0.0034,
            "p99_kl": 0.02,
            "p99_kl_low": 0.015,
            "p99_kl_high": 0.025,
            "top1_agreement": 0.969,
            "top1_agreement_low": 0.96,
            "top1_agreement_high": 0.978,
        }
    ]
    assert 2 == written["texts"][0]["num_windows"]
    assert written["texts"][0]["tokens_sha256"] != other["texts"][0]["tokens_sha256"]


def test_a_file_that_can_not_be_written_is_named(evaluation: Evaluation, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "eval.json"

    with pytest.raises(ConfigurationError, match=r"--json .*eval.json can't be written .No such"):
        write_json(path, evaluation, [WINDOWS], [ROW])
