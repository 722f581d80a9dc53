"""A picture of what each layer gains: a bar for the throughput without it."""

from collections.abc import Sequence
from pathlib import Path

from slipstream.services.cli.ablation_layers import EVERYTHING_ON
from slipstream.services.cli.ablation_report import Row
from slipstream.services.cli.bench_plot import check_plotting

_INCHES = (8.0, 4.5)
_GAINS, _LOSES, _NEITHER = "#1f77b4", "#d62728", "#999999"
_COLORS = {"gains": _GAINS, "loses": _LOSES}


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows into a file, whose ending names its format."""
    check_plotting()
    from matplotlib.figure import Figure  # noqa: PLC0415 - it is an extra, and slow to load

    without = [row for row in rows if row["layer"] != EVERYTHING_ON]
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    ratios = [row["ratio"] for row in without]
    axes.barh(
        [row["layer"] for row in without],
        ratios,
        xerr=[
            [max(0.0, row["ratio"] - row["ratio_low"]) for row in without],
            [max(0.0, row["ratio_high"] - row["ratio"]) for row in without],
        ],
        color=[_COLORS.get(row["verdict"], _NEITHER) for row in without],
        capsize=3,
    )
    for place, row in enumerate(without):
        note = f"{row['ratio']:.2f}" + (" (loses)" if row["verdict"] == "loses" else "")
        axes.annotate(note, (0.01, place), va="center", color="white")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.set_xlabel("tokens a second without the layer, of those with everything on")
    figure.savefig(path, dpi=150)
