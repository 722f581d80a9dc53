"""Pictures of the serving benchmark: latency against load, runs over time, and who is better."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.services.cli.bench_plot import check_plotting
from slipstream.services.cli.serve_bench import Cell
from slipstream.services.cli.serve_bench_report import (
    COMPARED,
    Measured,
    Row,
    crossings_of,
    load_of,
)
from slipstream.shared.measure.load.timeline import timeline

_INCHES = (11.0, 7.0)
_DPI = 150
_NUM_SLICES = 80
_LATENCIES = (("ttft_ms", "time to first token"), ("tpot_ms", "time per output token"))
_STYLES = (("p50", "-"), ("p95", "--"))


def draw(measured: Measured, directory: Path) -> list[Path]:
    """Write the pictures into a directory; return their files. Raises ConfigurationError."""
    check_plotting()
    directory.mkdir(parents=True, exist_ok=True)
    pictures = {"latency": _latency(measured), "timeline": _timelines(measured.cells)}
    if crossings_of(measured):
        pictures["crossover"] = _crossover(measured)
    paths = []
    for name, figure in pictures.items():
        paths.append(directory / f"{name}.png")
        figure.savefig(paths[-1], dpi=_DPI)
    return paths


def _figure() -> Any:  # Any: matplotlib is an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to load

    return Figure(figsize=_INCHES, layout="constrained")


def _latency(measured: Measured) -> Any:  # Any: as above
    figure = _figure()
    places = figure.subplots(2, 2).flat
    rows = _by_mode(measured.rows)
    for axes, (name, title) in zip(places, _LATENCIES, strict=False):
        for mode, of_mode in rows.items():
            known = [row for row in of_mode if row[name] is not None]
            for percentile, style in _STYLES:
                values = [row[name][percentile] for row in known]
                axes.plot(_loads(known), values, style, marker="o", label=f"{mode} {percentile}")
        _dress(axes, title, "milliseconds", measured)
    for axes, name, unit in (
        (places[2], "goodput", "good requests/s"),
        (places[3], "throughput_tok_s", "output tokens/s"),
    ):
        for mode, of_mode in rows.items():
            axes.plot(_loads(of_mode), [row[name] for row in of_mode], marker="o", label=mode)
        _dress(axes, name.removesuffix("_tok_s"), unit, measured)
    return figure


def _timelines(cells: Sequence[Cell]) -> Any:  # Any: as above
    """Draw the last run of each mode at its highest load."""
    shown = {cell.mode: cell for cell in sorted(cells, key=_load_of)}
    figure = _figure()
    grid = figure.subplots(2, len(shown), squeeze=False, sharex=True)
    for column, (mode, cell) in enumerate(shown.items()):
        moments = timeline(cell.runs[-1], _NUM_SLICES)
        times_s = [each.at_s for each in moments]
        requests, tokens = grid[0][column], grid[1][column]
        requests.stackplot(
            times_s,
            [each.num_running for each in moments],
            [each.num_waiting for each in moments],
            labels=("running", "waiting for a first token"),
        )
        requests.set_title(f"{mode}, {cell.level.name}")
        requests.set_ylabel("requests")
        requests.legend(loc="upper left")
        tokens.plot(times_s, [each.tok_s for each in moments])
        tokens.set_ylabel("output tokens/s")
        tokens.set_xlabel("seconds")
        for axes in (requests, tokens):
            axes.axvline(cell.runs[-1].begin_s, color="grey", linestyle=":")
            axes.grid(visible=True, alpha=0.3)
    return figure


def _crossover(measured: Measured) -> Any:  # Any: as above
    """Draw each figure of the second mode in those of the first: below 1 is less."""
    first, second = _by_mode(measured.rows).values()
    names = [mode.name for mode in measured.modes]
    figure = _figure()
    sides = figure.subplots(1, 2)
    for axes, is_more_better in zip(sides, (True, False), strict=True):
        for name, value_of, is_more in COMPARED:
            pairs = [
                (value_of(one), value_of(other)) for one, other in zip(first, second, strict=True)
            ]
            points = [
                (load, other / one)
                for load, (one, other) in zip(_loads(first), pairs, strict=True)
                if one and other is not None
            ]
            if is_more == is_more_better and points:
                loads, ratios = zip(*points, strict=True)
                axes.plot(loads, ratios, marker="o", label=name)
        axes.axhline(1.0, color="black", linewidth=1)
        better, worse = ("above", "below") if is_more_better else ("below", "above")
        _dress(
            axes,
            f"{names[1]} wins {better} 1 and loses {worse}",
            f"{names[1]} / {names[0]}",
            measured,
        )
    return figure


def _dress(axes: Any, title: str, unit: str, measured: Measured) -> None:  # Any: as above
    is_closed = measured.cells[0].level.rate is None
    axes.set_title(title)
    axes.set_xlabel("streams" if is_closed else "requests/s")
    axes.set_ylabel(unit)
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def _by_mode(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=load_of):
        found[row["mode"]].append(row)
    return found


def _loads(rows: Sequence[Row]) -> list[float]:
    return [load_of(row) for row in rows]


def _load_of(cell: Cell) -> float:
    return cell.level.rate or cell.level.streams or 0.0
