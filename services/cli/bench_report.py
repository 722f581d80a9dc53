"""What the engine benchmark prints and writes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slipstream.services.cli.text_table import right_aligned
from slipstream.shared.measure.engine_steps import StepResult
from slipstream.shared.measure.engines import EngineFormat
from slipstream.shared.measure.estimate import Estimate, describe_machine
from slipstream.shared.measure.measured_machine import MeasuredMachine

_GIGA = 1e9
_MEGA = 1e6
_COLUMNS = (
    *("engine", "batch", "context", "prefill tok/s", "decode tok/s", "step ms"),
    *("95 % interval", "MB a step", "GB/s", "of the roofline"),
)

Row = dict[str, Any]  # Any: text and numbers


def rows_of(results: Sequence[StepResult]) -> list[Row]:
    """Return one row for each engine, batch and context."""
    prefills = {each.format: each for each in results if each.cell.phase == "prefill"}
    return [
        _row(each, prefills.get(each.format)) for each in results if each.cell.phase == "decode"
    ]


def _row(result: StepResult, prefill: StepResult | None) -> Row:
    assert result.stream is not None, "readers run beside decode steps"
    step, best = result.step_ms, result.stream.best_ms
    fraction = result.roofline_fraction
    row: Row = {
        "format": result.format.weights,
        "kv_format": result.format.kv,
        "fused": result.format.is_fused,
        "batch": result.cell.batch,
        "context": result.cell.context,
        "num_rounds": len(step.samples),
    }
    if prefill is not None:
        row |= _rates("prefill_tok_s", prefill.cell.num_rows * 1000, prefill.step_ms)
    row |= _rates("decode_tok_s", result.cell.batch * 1000, step)
    row |= _spread("step_ms", step.median, step.low, step.high)
    row["bytes_per_step"] = result.num_bytes
    row |= _rates("stream_gb_s", result.stream.num_bytes * 1000 / _GIGA, best)
    row["stream_reader"] = result.stream.best.name
    row |= _spread("roofline_fraction", fraction.median, fraction.low, fraction.high)
    return row


def _rates(name: str, amount: float, milliseconds: Estimate) -> Row:
    """Return an amount over a time: the longest time gives the lowest rate."""
    times = (milliseconds.median, milliseconds.high, milliseconds.low)
    return _spread(name, *(amount / each for each in times))


def _spread(name: str, median: float, low: float, high: float) -> Row:
    return {name: median, f"{name}_low": low, f"{name}_high": high}


def name_of(row: Row) -> str:
    """Return what tells an engine's rows from another's."""
    return EngineFormat(row["format"], row["kv_format"], is_fused=row["fused"]).name


def roofline_table(rows: Sequence[Row]) -> str:
    """Return the rows for people."""
    return right_aligned(_COLUMNS, [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        name_of(row),
        str(row["batch"]),
        str(row["context"]),
        f"{row['prefill_tok_s']:.0f}" if "prefill_tok_s" in row else "",
        f"{row['decode_tok_s']:.0f}",
        f"{row['step_ms']:.2f}",
        f"{row['step_ms_low']:.2f} to {row['step_ms_high']:.2f}",
        f"{row['bytes_per_step'] / _MEGA:.1f}",
        f"{row['stream_gb_s']:.1f}",
        f"{row['roofline_fraction']:.0%}",
    )


def fusion_table(results: Sequence[StepResult]) -> str:
    """Return how many times longer each step takes op by op."""
    fused = {(each.format, each.cell): each for each in results if each.format.is_fused}
    ratios = []
    for each in results:
        other = fused.get((replace(each.format, is_fused=True), each.cell))
        if each.format.is_fused or other is None:
            continue
        name = f"{each.cell.name}: {other.format.name}"
        samples = (each.step_ms.samples, other.step_ms.samples)
        ratios.append(Estimate.of_ratio(name, *samples))
    title = "unfused / fused"
    width = max(len(title), *(len(each.name) for each in ratios))
    lines = [f"{title:<{width}}  {'medians':>7}  95 % interval"]
    lines += [
        f"{each.name:<{width}}  {each.median:>7.2f}  {each.low:.2f} to {each.high:.2f}"
        for each in ratios
    ]
    return "\n".join(lines)


def peak_line(machine: MeasuredMachine, peaks: Mapping[str, Estimate]) -> str:
    """Return what the machine computes from registers."""
    rates = ", ".join(f"{name} {each.median / _GIGA:,.0f} GOP/s" for name, each in peaks.items())
    return f"{machine.num_threads} threads, {machine.level}, from registers: {rates}"


def as_json(
    results: Sequence[StepResult],
    machine: MeasuredMachine,
    peaks: Mapping[str, Estimate],
    settings: Mapping[str, Any],  # Any: as in `Row`
) -> dict[str, Any]:
    """Return what `--json` writes."""
    return {
        "machine": {
            **describe_machine(),
            "level": machine.level,
            "num_threads": machine.num_threads,
            "peak_gop_s": {name: _in_giga(each) for name, each in peaks.items()},
        },
        "settings": dict(settings),
        "rows": rows_of(results),
        "cells": [_cell(each) for each in results],
    }


def _in_giga(estimate: Estimate) -> Row:
    values = {"median": estimate.median, "low": estimate.low, "high": estimate.high}
    return {name: value / _GIGA for name, value in values.items()}


def _cell(result: StepResult) -> Row:
    """Return everything that was measured of a cell."""
    row: Row = {
        "format": result.format.weights,
        "kv_format": result.format.kv,
        "fused": result.format.is_fused,
        "phase": result.cell.phase,
        "batch": result.cell.batch,
        "context": result.cell.context,
        "num_rows": result.cell.num_rows,
        **_spread("step_ms", result.step_ms.median, result.step_ms.low, result.step_ms.high),
        "step_ms_samples": list(result.step_ms.samples),
    }
    if result.stream is not None:
        row["readers"] = [
            {
                "num_threads": reader.num_threads,
                "prefetch_bytes": reader.prefetch_bytes,
                **_rates("gb_s", result.stream.num_bytes * 1000 / _GIGA, read_ms),
                "read_ms_samples": list(read_ms.samples),
            }
            for reader, read_ms in result.stream.read_ms.items()
        ]
    return row
