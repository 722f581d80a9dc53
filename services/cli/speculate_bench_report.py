"""What `slipstream bench speculate` prints and writes."""

from collections.abc import Sequence
from typing import Any

from slipstream.services.cli.speculate_bench import CellResult
from slipstream.services.cli.speculate_bench_options import SpeculateBenchOptions
from slipstream.services.cli.text_table import right_aligned
from slipstream.shared.measure.estimate import describe_machine
from slipstream.shared.measure.speculation import predicted_speedup, total

Row = dict[str, Any]  # Any: text and numbers

_COLUMNS = (
    *("set", "draft", "batch", "temperature", "speed-up", "95 % interval", "predicted"),
    *("accepted / tested", "accepted / drafted", "tokens a step", "looped"),
)
_UNKNOWN = "-"


def row_of(result: CellResult) -> Row:
    """Return the figures of a cell; None where nothing was drafted."""
    cell, speedup, sums = result.cell, result.speedup, total(result.outputs)
    predicted = None
    if result.step_ratios is not None or not sums.num_draft_steps:
        predicted = predicted_speedup(result.outputs, result.step_ratios)
    return {
        "set": cell.set_name,
        "draft": cell.draft,
        "batch": cell.batch,
        "temperature": cell.temperature,
        "speedup": speedup.median,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "predicted_speedup": predicted,
        "acceptance_tested": _share(sums.num_accepted, sums.num_tested),
        "acceptance_drafted": _share(sums.num_accepted, sums.num_drafted),
        "tokens_per_step": sums.num_tokens / sums.num_steps,
        "looped": result.num_looped,
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def table(rows: Sequence[Row]) -> str:
    """Return the rows for people."""
    return right_aligned(_COLUMNS, [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        *(row["set"], row["draft"], str(row["batch"]), f"{row['temperature']:g}"),
        f"{row['speedup']:.3f}",
        f"{row['speedup_low']:.3f} to {row['speedup_high']:.3f}",
        _figure(row["predicted_speedup"], ".3f"),
        _figure(row["acceptance_tested"], ".0%"),
        _figure(row["acceptance_drafted"], ".0%"),
        f"{row['tokens_per_step']:.2f}",
        str(row["looped"]),
    )


def _figure(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)


def as_json(results: Sequence[CellResult], options: SpeculateBenchOptions) -> dict[str, Any]:
    """Return what `--json` writes. Any: as above."""
    return {
        "machine": describe_machine(),
        "settings": _settings(options),
        "rows": [row_of(each) for each in results],
        "cells": [_samples(each) for each in results],
    }


def _settings(options: SpeculateBenchOptions) -> Row:
    return {
        "model": options.model,
        "format": options.weight_format,
        "kv_format": options.kv_format,
        "threads": options.threads,
        "is_running_stack": options.url is not None,
        "output": options.output,
        "seed": options.seed,
        "max_pairs": options.max_pairs,
    }


def _samples(result: CellResult) -> Row:
    """Return what a row was made of, in the order of the rows."""
    sums = total(result.outputs)
    ratios = result.step_ratios
    return {
        "num_prompts": result.num_prompts,
        "pair_ratios": list(result.ratios),
        "draft_share": sums.draft_share,
        "drafts_per_step": sums.drafts_per_step,
        "step_ratios": [] if ratios is None else [list(point) for point in ratios.points],
    }
