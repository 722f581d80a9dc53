"""`slipstream simulate` answers questions of planning, and says what is wrong with others."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.main import run_command

FAST = ["--fake", "5,50,20", "--requests", "150", "--rate", "10"]


def simulate(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """Return the exit status, and what was printed to both."""
    status = run_command(["simulate", *options])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def written(path: Path) -> Any:  # Any: JSON
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run_prints_and_writes_what_each_class_got(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    classes = ["--classes", "interactive=0.5,batch=0.5"]
    status, text = simulate(capsys, *FAST, *classes, "--json", str(path))
    rows = {each["group"]: each for each in written(path)["rows"]}

    assert 0 == status, text
    assert "interactive" in text
    assert ["all", "batch", "interactive"] == list(rows)
    assert 150 == rows["all"]["num_requests"]
    assert 150 == rows["batch"]["num_requests"] + rows["interactive"]["num_requests"]
    assert 0 < rows["all"]["ttft_ms_p50"] <= rows["all"]["ttft_ms_p95"] < 1000


def test_the_same_seed_prints_the_same_and_costs_of_a_file_count(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def table(*options: str) -> str:
        return simulate(capsys, *FAST, *options)[1].split("\n\n")[0]

    cell = {"format": "int8", "fused": True, "context": 512}
    steps = [("decode", 1, 1), ("decode", 8, 1), ("decode", 32, 1), ("verify", 1, 4)]
    cells = [
        cell | {"phase": phase, "batch": batch, "num_rows": rows, "step_ms": 40.0 + batch + rows}
        for phase, batch, rows in [*steps, ("verify", 1, 8), ("prefill", 1, 512)]
    ]
    path = tmp_path / "engine.json"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")

    assert table("--seed", "4") == table("--seed", "4")
    assert table("--seed", "4") != table("--seed", "5")
    assert table() != table("--costs", str(path))


def test_a_plan_is_the_fewest_workers_that_keep_the_targets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One worker fewer of either kind does not keep them: all of those were tried."""
    path = tmp_path / "plan.json"
    status, text = simulate(
        capsys,
        *["--fake", "20,200,0", "--requests", "300", "--rate", "12", "--decode-seats", "8"],
        *["--plan", "prefill=1..4,decode=1..6", "--target-ttft-ms", "600"],
        *["--json", str(path)],
    )
    tried = written(path)["tried"]
    best = tried[0]
    number = best["num_prefill"] + best["num_decode"]
    fewer = [each for each in tried if each["num_prefill"] + each["num_decode"] < number]

    assert 0 == status, text
    assert f"--prefill {best['num_prefill']} --decode {best['num_decode']} is the fewest" in text
    assert best["is_kept"]
    assert best["ttft_ms"] <= 600
    assert fewer
    assert not any(each["is_kept"] for each in fewer)


def test_policies_are_compared_under_one_load(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "policies.json"
    status, text = simulate(
        capsys,
        *["--fake", "20,100,0", "--requests", "400", "--rate", "12", "--decode-seats", "4"],
        *["--tenants", "many=0.9,few=0.1", "--policies", "fcfs,fair", "--json", str(path)],
    )
    found = {
        policy: {row["group"]: row for row in rows}
        for policy, rows in written(path)["policies"].items()
    }

    assert 0 == status, text
    assert ["fcfs", "fair"] == list(found)
    assert found["fair"]["few"]["ttft_ms_p95"] < 0.5 * found["fcfs"]["few"]["ttft_ms_p95"]


@pytest.mark.parametrize(
    "options", [[], ["--policies", "fcfs,sjf"], ["--plan", "prefill=1..1,decode=1..2"]]
)
def test_each_kind_of_answer_is_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str]
) -> None:
    path = tmp_path / "drawn.png"
    status, text = simulate(capsys, *FAST, *options, "--plot", str(path))

    assert 0 == status, text
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--fake", "1,2"], "--fake is '1,2': write 3 numbers"),
        (["--fake", "0,1,1"], "a step takes time"),
        (["--prompt-tokens", "80-10"], "--prompt-tokens is '80-10'"),
        (["--output-tokens", "few"], "--output-tokens is 'few'"),
        (["--classes", "urgent=1"], "'urgent' is none of interactive, standard, batch"),
        (["--tenants", "a"], "--tenants is 'a': write a=0.9"),
        (["--bursts", "20:10:1"], "at most 10"),
        (["--plan", "prefill=1-2"], "write prefill=1..8,decode=1..16"),
        (["--plan", "prefill=1..2,decode=0..1"], "at least one decode worker"),
        (["--policies", "lifo"], "'lifo' is none of"),
        (["--plan", "prefill=1..1,decode=1..1", "--validate"], "exclude each other"),
        (["--streams", "4", "--rate", "2"], "leave out --rate"),
        (["--poisson"], "--poisson needs --trace"),
        (["--costs", "/nowhere.json"], "/nowhere.json"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["--validate", "--requests", "10"], "at least 40"),
        (["--validate", "--costs", "x.json"], "leave --costs out"),
        (["--validate", "--prefill", "0"], "--prefill 1 or more"),
        (["--validate", "--apart"], "without --apart"),
        (["--validate", "--decode-seats", "4"], "leave --prefill-seats and --decode-seats out"),
        (["--validate", "--route", "local"], "--route local"),
        (["--validate", "--format", "int3"], "'int3' is none of auto, float32"),
    ],
)
def test_what_can_not_be_simulated_is_refused_by_its_option(
    capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    status, text = simulate(capsys, *options)

    assert 1 == status
    assert reason in text
