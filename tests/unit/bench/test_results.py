"""What programs write is what they found, and all that they were told."""

import json
from pathlib import Path

import pytest
from results import heading, make_parser, microseconds, row, write_results


@pytest.mark.parametrize(("unit", "expected"), [("us", {"unit": "us"}), (None, {})])
def test_every_option_stands_beside_the_figures_but_the_file(
    tmp_path: Path, unit: str | None, expected: dict[str, str]
) -> None:
    path = tmp_path / "figures.json"
    parser = make_parser("\nMeasure it.\n\nAt length.\n")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--own-time", action="store_true")

    write_results(parser.parse_args(["--json", str(path), "--own-time"]), {"a": 1.5}, unit)

    written = json.loads(path.read_text())
    assert "Measure it." == parser.description
    assert written.pop("machine")["num_cores"] >= 1
    expected_settings = {"rounds": 3, "own_time": True}
    assert {**expected, "settings": expected_settings, "results": {"a": 1.5}} == written


def test_nothing_is_written_unless_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    write_results(make_parser("Measure it.").parse_args([]), {})

    assert [] == list(tmp_path.iterdir())


def test_short_times_stand_in_a_table_with_the_longest_at_its_end() -> None:
    figures = microseconds([1000 * number for number in range(101, 0, -1)])

    assert {"p50": 51.0, "p99": 100.0, "p100": 101.0} == figures
    assert ["microseconds", "p50", "p99", "longest"] == heading().split()
    assert ["lease,", "new", "51.0", "100.0", "101.0"] == row("lease, new", figures).split()
    assert len(heading()) == len(row("lease, new", figures))
