"""What `slipstream bench speculate` says of its cells."""

import json
from pathlib import Path

from slipstream.services.cli.speculate_bench import CellResult
from slipstream.services.cli.speculate_bench_options import SpeculateBenchOptions
from slipstream.services.cli.speculate_bench_plan import Cell
from slipstream.services.cli.speculate_bench_plot import plot
from slipstream.services.cli.speculate_bench_report import as_json, row_of, table
from slipstream.shared.measure.speculation import Drafting, StepRatios

_DRAFTED = Drafting(100, 40, 20, 80, 75, 60)
_PLAIN = Drafting(100, 100, 0, 0, 0, 0)
_COLUMNS = (
    *("set", "draft", "batch", "temperature", "speedup", "speedup_low", "speedup_high"),
    *("predicted_speedup", "acceptance_tested", "acceptance_drafted", "tokens_per_step"),
    "looped",
)


def result(
    output: Drafting = _DRAFTED, ratios: StepRatios | None = None, *, batch: int = 1
) -> CellResult:
    cell = Cell("chat", "ngram", batch, 0.7)
    return CellResult(cell, 3, 41, ratios, [1.2, 1.1, 1.3, 1.2, 1.2], [output])


def test_a_row_has_the_columns_that_were_promised() -> None:
    row = row_of(result(ratios=StepRatios([(4.0, 1.4)])))

    assert _COLUMNS == tuple(row)
    assert ("chat", "ngram", 1, 0.7, 3) == tuple(
        row[name] for name in ("set", "draft", "batch", "temperature", "looped")
    )
    assert (1.1, 1.2, 1.3) == (row["speedup_low"], row["speedup"], row["speedup_high"])
    assert (0.8, 0.75, 2.5) == (
        *(row["acceptance_tested"], row["acceptance_drafted"]),
        row["tokens_per_step"],
    )


def test_nothing_is_foretold_where_steps_with_drafts_have_no_price() -> None:
    assert None is row_of(result())["predicted_speedup"]


def test_where_nothing_was_drafted_there_is_no_acceptance_and_no_gain() -> None:
    row = row_of(result(_PLAIN))

    assert (None, None) == (row["acceptance_tested"], row["acceptance_drafted"])
    assert (1.0, 1.0) == (row["predicted_speedup"], row["tokens_per_step"])


def test_the_table_shows_shares_and_what_is_unknown() -> None:
    header, drafted, plain = table([row_of(result()), row_of(result(_PLAIN))]).splitlines()

    assert header.split()[:4] == ["set", "draft", "batch", "temperature"]
    assert "1.200" in drafted
    assert "1.100 to 1.300" in drafted
    assert ["-", "80%", "75%", "2.50", "3"] == drafted.split()[-5:]
    assert ["1.000", "-", "-", "1.00", "3"] == plain.split()[-5:]


def test_json_has_rows_and_what_they_were_made_of(tmp_path: Path) -> None:
    ratios = StepRatios([(1.0, 1.1), (4.0, 1.4)])
    options = SpeculateBenchOptions(weight_format="int8", url="nats://10.0.0.1")
    written = json.loads(json.dumps(as_json([result(ratios=ratios)], options)))

    (row,), (cell,) = written["rows"], written["cells"]
    assert _COLUMNS == tuple(row)
    assert [1.2, 1.1, 1.3, 1.2, 1.2] == cell["pair_ratios"]
    assert (41, 0.5, 4.0) == (cell["num_prompts"], cell["draft_share"], cell["drafts_per_step"])
    assert [[1.0, 1.1], [4.0, 1.4]] == cell["step_ratios"]
    assert ("int8", True) == (
        written["settings"]["format"],
        written["settings"]["is_running_stack"],
    )


def test_a_picture_is_drawn_with_and_without_predictions(tmp_path: Path) -> None:
    rows = [row_of(result(ratios=StepRatios([(4.0, 1.4)]))), row_of(result(batch=8))]
    plot(rows, tmp_path / "speculate.png")

    assert (tmp_path / "speculate.png").read_bytes().startswith(b"\x89PNG")
