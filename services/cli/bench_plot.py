"""A picture of the engine benchmark: step time over batch and over context, beside the wall."""

import importlib.util
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.services.cli.bench_report import Row, name_of
from slipstream.shared.errors import ConfigurationError

_INCHES = (10.0, 5.0)


def check_plotting() -> None:
    """Raise ConfigurationError where there is nothing to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigurationError("--plot needs matplotlib: pip install 'slipstream[bench]'")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows into a file, whose ending names its format."""
    check_plotting()
    # Imported here: it is an extra, and slow to load.
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=_INCHES, layout="constrained")
    over_batch, over_context = figure.subplots(1, 2)
    context = _context_of_batches(rows)
    _draw(over_batch, [row for row in rows if row["context"] == context], "batch")
    _draw(over_context, [row for row in rows if row["batch"] == 1], "context")
    over_batch.set_title(f"context {context}")
    over_context.set_title("batch 1")
    lines, names = over_batch.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)


def _context_of_batches(rows: Sequence[Row]) -> int:
    """Return the context at which the batches were varied: that of most rows."""
    contexts: list[int] = [row["context"] for row in rows]
    return max(contexts, key=contexts.count)


def _draw(axes: Any, rows: Sequence[Row], over: str) -> None:  # Any: matplotlib is an extra
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row[over]):
        lines[name_of(row)].append(row)
    for name, line in lines.items():
        sizes = [row[over] for row in line]
        steps = [row["step_ms"] for row in line]
        below = [row["step_ms"] - row["step_ms_low"] for row in line]
        above = [row["step_ms_high"] - row["step_ms"] for row in line]
        drawn = axes.errorbar(sizes, steps, [below, above], marker="o", capsize=3, label=name)
        walls = [row["bytes_per_step"] / row["stream_gb_s"] / 1e6 for row in line]
        color = drawn.lines[0].get_color()
        axes.plot(sizes, walls, "--", color=color, label=f"{name}: reading its bytes")
    _scale(axes, sorted({row[over] for row in rows}), over)


def _scale(axes: Any, sizes: Sequence[int], over: str) -> None:  # Any: as above
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, alpha=0.3)
    axes.set_xlabel(over)
    axes.set_ylabel("milliseconds a step")
