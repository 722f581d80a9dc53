"""What `slipstream bench serve` says of its runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.services.cli.serve_bench import Cell
from slipstream.services.cli.serve_bench_options import ServeBenchOptions
from slipstream.services.cli.serve_bench_plan import Level, make_plan
from slipstream.services.cli.serve_bench_plot import draw
from slipstream.services.cli.serve_bench_report import (
    Measured,
    crossings_of,
    warnings_of,
)
from slipstream.services.cli.serve_bench_stacks import Mode, mode_of, named_mode
from slipstream.services.cli.serve_bench_table import as_text
from slipstream.services.cli.serve_bench_tuning import Try, best_of
from slipstream.services.cli.stack import StackSettings
from slipstream.shared.config import DecodeConfig
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.load.samples import LoadRun
from slipstream.shared.measure.load.summary import summarize
from tests.unit.measure.load.load_samples import make_sample

_OPTIONS = ServeBenchOptions(targets="100/1000")


def _run(*ttfts_s: float, cpu_share: float = 0.0) -> LoadRun:
    """Return a run whose requests, one a second, waited so long for two tokens."""
    samples = [
        make_sample(at_s, at_s + ttft_s, at_s + ttft_s + 0.01)
        for at_s, ttft_s in enumerate(ttfts_s)
    ]
    return LoadRun(samples, 0.0, float(len(ttfts_s)), cpu_share)


def _measured(cells: Sequence[Cell], modes: Sequence[str] = ("aggregated",)) -> Measured:
    plan = make_plan(_OPTIONS, 50_000, 2048)
    settings = StackSettings(cache_dir=Path())
    return Measured(plan, [Mode(name=name, settings=settings) for name in modes], cells, (), None)


@pytest.fixture
def compared() -> Measured:
    """The second mode answers sooner at the higher rate, and later at the lower."""
    waits = {("aggregated", 1.0): 0.02, ("disaggregated", 1.0): 0.04}
    waits |= {("aggregated", 4.0): 0.2, ("disaggregated", 4.0): 0.06}
    cells = [
        Cell(mode, Level(rate=rate), [_run(wait, wait, wait)])
        for (mode, rate), wait in waits.items()
    ]
    return _measured(cells, ("aggregated", "disaggregated"))


def test_the_stack_stands_beside_its_engine() -> None:
    stack = [_run(0.05, 0.15), _run(0.05, 0.05)]
    engine = [_run(0.04, 0.04, 0.04, 0.04), _run(0.04, 0.04)]
    (row,) = _measured([Cell("aggregated", Level(streams=2), stack, engine)]).rows

    assert (2, None) == (row["streams"], row["rate"])
    assert (4, 0.75, 0.75) == (row["num_requests"], row["attainment"], row["goodput"])
    assert pytest.approx(50) == row["ttft_ms"]["p50"]
    assert pytest.approx(10) == row["overhead_ttft_ms"]
    assert pytest.approx(row["throughput_tok_s"]) == row["in_process_throughput_tok_s"] == 2.0


def test_without_an_engine_its_figures_are_missing() -> None:
    (row,) = _measured([Cell("aggregated", Level(streams=2), [_run(0.1)])]).rows

    assert [None, None] == [row["in_process_throughput_tok_s"], row["overhead_ttft_ms"]]


def test_who_wins_where_is_said_and_drawn(compared: Measured, tmp_path: Path) -> None:
    (ttft,) = (each for each in crossings_of(compared) if each.name == "ttft_ms p50")
    printed = as_text(compared)

    assert [0, 1] == list(ttft.winners)
    assert "ttft_ms p50: aggregated better at 1; disaggregated better at 4; they cross" in printed
    assert "goodput: disaggregated better at 4" in printed
    paths = draw(compared, tmp_path / "plots")
    assert ["latency.png", "timeline.png", "crossover.png"] == [path.name for path in paths]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_what_makes_figures_worth_less_is_said() -> None:
    late = _run(0.1, 0.1, cpu_share=0.4)
    for sample in late.samples:
        sample.sent_s = sample.due_s + 0.05
    late.samples[0].error = "overloaded: too many"
    late.samples[1].ended_s = None
    notes = warnings_of(_measured([Cell("aggregated", Level(rate=2.0), [late])]).rows)

    for part in (
        "took 40% of a core",
        "50 ms late",
        "1 of 2 requests failed (overloaded",
        "1 of 2 requests were not",
    ):
        assert 1 == sum(part in note for note in notes), notes


def test_a_quiet_run_needs_no_notes() -> None:
    assert [] == warnings_of(_measured([Cell("a", Level(rate=2.0), [_run(0.1)])]).rows)


def test_the_budget_with_most_goodput_is_taken_and_the_first_of_equals(tmp_path: Path) -> None:
    mode = Mode(name="aggregated", settings=StackSettings(cache_dir=tmp_path))
    targets = make_plan(_OPTIONS, 50_000, 2048).targets
    tries = [
        Try(mode, budget, 100, Level(rate=1.0), summarize([_run(*waits)], targets))
        for budget, waits in ((1, (0.5, 0.01)), (2, (0.01, 0.01)), (3, (0.01, 0.01)))
    ]

    assert tries[1] is best_of(tries)


def test_modes_differ_by_where_prompts_are_computed_and_by_nothing_else(tmp_path: Path) -> None:
    settings = StackSettings(cache_dir=tmp_path, num_threads=2, kv_memory="64MiB")
    aggregated, disaggregated = (
        named_mode(name, settings) for name in ("aggregated", "disaggregated")
    )

    assert ("local", 0) == (aggregated.settings.route, aggregated.settings.num_prefill)
    assert ("remote", 1) == (disaggregated.settings.route, disaggregated.settings.num_prefill)
    same = {"route": "auto", "num_prefill": 1}
    assert replace(aggregated.settings, **same) == replace(disaggregated.settings, **same)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"num_prefill": 0}, "aggregated"),
        ({"route": "local"}, "aggregated"),
        ({"route": "remote"}, "disaggregated"),
        ({}, "auto"),
    ],
)
def test_a_stack_is_called_by_where_its_prompts_are_computed(
    tmp_path: Path, changes: dict[str, str], name: str
) -> None:
    assert name == mode_of(replace(StackSettings(cache_dir=tmp_path), **changes)).name


def test_the_engine_is_configured_as_the_worker_of_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_SEATS", "5")
    settings = StackSettings(cache_dir=tmp_path, num_threads=2, weight_format="int8")
    mode = Mode(name="aggregated", settings=settings).with_budget(77, 50)
    config = mode.config(DecodeConfig, "decode")

    assert (5, 2, "int8") == (config.num_seats, config.num_threads, config.weight_format)
    assert (77, 50.0) == (config.token_budget, config.prompt_step_ms)
    monkeypatch.setenv("SLIPSTREAM_SEATS", "many")
    with pytest.raises(ConfigurationError, match=r"SLIPSTREAM_ variable .*decode --help"):
        mode.config(DecodeConfig, "decode")
