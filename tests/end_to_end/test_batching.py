"""`bench/batching.py` on a stack with the real model: small, and nothing about speed."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(240)]

_PROGRAM = Path(__file__).parents[2] / "bench" / "batching.py"
_NUM_SEATS = 2
_LENGTHS = ((30, 8), (80, 2), (12, 16), (50, 1), (100, 12), (7, 4))
_TRACE = "\n".join(["ContextTokens,GeneratedTokens", *(f"{p},{o}" for p, o in _LENGTHS)])
_NUM_OUTPUT_TOKENS = sum(output for _, output in _LENGTHS)


def _run(trace: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, _PROGRAM, "--trace", trace, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def written(packed_int8: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What --json holds. Any: JSON."""
    trace = tmp_path_factory.mktemp("batching") / "trace.csv"
    trace.write_text(_TRACE, encoding="utf-8")
    path = trace.with_name("batching.json")
    small = f"--batch {_NUM_SEATS} --max-tokens 112 --rounds 2 --kv-memory 64MiB --route remote"
    done = _run(trace, *small.split(), "--json", str(path))
    assert 0 == done.returncode, done.stderr
    assert "continuous / static" in done.stdout
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_every_way_gives_the_tokens_of_the_trace(written: dict[str, Any]) -> None:
    """At a factor of 1: the longest request is just what fits."""
    sample = written["sample of the trace"]
    assert (6, 1.0) == (sample["requests"], sample["lengths times"])
    assert _NUM_OUTPUT_TOKENS == sample["output tokens"]

    for name, figures in written["ways"].items():
        num_tokens = len(_LENGTHS) if name == "prompts" else _NUM_OUTPUT_TOKENS
        for rate, seconds in zip(
            figures["output tokens/s"]["samples"], figures["seconds"]["samples"], strict=True
        ):
            assert pytest.approx(num_tokens) == rate * seconds


def test_figures_are_possible(written: dict[str, Any]) -> None:
    for way, figures in written["ways"].items():
        found = {name: each["median"] for name, each in figures.items()}
        assert all(math.isfinite(value) and value >= 0 for value in found.values())
        assert (way == "prompts") == (found["decode steps"] == 0)
        assert found["sequences in a step"] <= _NUM_SEATS
        assert 0 < found["seconds to first token"] < found["seconds"]
        assert 0 == found["preemptions"]


def test_a_padded_group_decodes_until_its_longest_has_ended(written: dict[str, Any]) -> None:
    """All but the first token of each answer take a row of a decode step."""
    outputs = [output for _, output in _LENGTHS]
    longest = [max(pair) for pair in zip(outputs[::2], outputs[1::2], strict=True)]

    assert _num_rows(written, "static") >= sum(output - 1 for output in outputs)
    assert _num_rows(written, "continuous") >= sum(output - 1 for output in outputs)
    assert _num_rows(written, "padded") >= sum(_NUM_SEATS * (output - 1) for output in longest)


def _num_rows(written: dict[str, Any], way: str) -> float:
    figures = written["ways"][way]
    return min(
        steps * rows
        for steps, rows in zip(
            figures["decode steps"]["samples"],
            figures["sequences in a step"]["samples"],
            strict=True,
        )
    )


def test_a_bad_trace_ends_it_with_the_reason_before_anything_starts(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("when,what\n1,2\n", encoding="utf-8")

    done = _run(trace)

    assert 1 == done.returncode
    assert f"Error: {trace}, line 1: neither JSON lines nor a CSV" in done.stderr
