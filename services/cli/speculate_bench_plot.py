"""A picture of what speculation gains: a panel for each kind of draft and temperature."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.services.cli.bench_plot import check_plotting
from slipstream.services.cli.speculate_bench_report import Row

_PANEL_INCHES = (5.5, 4.0)
_GROUP_WIDTH = 0.8
_LEAST = 0.97  # below it speculation would cost


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows into a file, whose ending names its format."""
    check_plotting()
    from matplotlib.figure import Figure  # noqa: PLC0415 - it is an extra, and slow to load

    drafts = list(dict.fromkeys(row["draft"] for row in rows))
    temperatures = list(dict.fromkeys(row["temperature"] for row in rows))
    width, height = _PANEL_INCHES
    size = (width * len(temperatures), height * len(drafts))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(drafts), len(temperatures), squeeze=False, sharey=True)
    for draft, line in zip(drafts, panels, strict=True):
        for temperature, axes in zip(temperatures, line, strict=True):
            _draw(axes, [r for r in rows if (r["draft"], r["temperature"]) == (draft, temperature)])
            axes.set_title(f"{draft}, temperature {temperature:g}")
    lines, names = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names))
    figure.savefig(path, dpi=150)


def _draw(axes: Any, rows: Sequence[Row]) -> None:  # Any: matplotlib is an extra
    sets = list(dict.fromkeys(row["set"] for row in rows))
    batches = sorted({row["batch"] for row in rows})
    width = _GROUP_WIDTH / len(batches)
    predictions: list[tuple[float, float]] = []
    for number, batch in enumerate(batches):
        bars = [row for row in rows if row["batch"] == batch]
        offset = (number - (len(batches) - 1) / 2) * width
        places = [sets.index(row["set"]) + offset for row in bars]
        heights = [row["speedup"] for row in bars]
        below = [row["speedup"] - row["speedup_low"] for row in bars]
        above = [row["speedup_high"] - row["speedup"] for row in bars]
        axes.bar(places, heights, width, yerr=[below, above], capsize=3, label=f"batch {batch}")
        predictions += [
            (place, row["predicted_speedup"])
            for place, row in zip(places, bars, strict=True)
            if row["predicted_speedup"] is not None
        ]
    axes.plot(
        [place for place, _ in predictions],
        [value for _, value in predictions],
        *("k_",),
        markersize=12,
        label="predicted",
    )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.axhline(_LEAST, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(sets)), sets)
    axes.set_ylabel("times as fast as without")
