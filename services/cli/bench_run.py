"""What `slipstream bench engine` does with its options."""

import json
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import typer

from slipstream.services.cli import bench_plot, bench_report
from slipstream.services.cli.console import progress, resolve_cache_dir
from slipstream.services.cli.measure_options import EngineBenchOptions
from slipstream.services.cli.model_commands import pack_once
from slipstream.services.cli.name_lists import parse_names
from slipstream.shared.config import KvFormat, WeightFormat
from slipstream.shared.cores import num_cores
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.engine_cells import Workload, standard_cells
from slipstream.shared.measure.engine_steps import measure
from slipstream.shared.measure.engines import TORCH, BenchedModel, EngineFormat, opened_engines
from slipstream.shared.measure.estimate import table
from slipstream.shared.measure.measured_machine import MeasuredMachine
from slipstream.shared.model.formats import KV_BESIDE


def run_engine_bench(options: EngineBenchOptions) -> None:
    """Measure; print tables, write files. Raises ConfigurationError and ModelError."""
    if options.plot_file is not None:
        bench_plot.check_plotting()
    formats = parse_formats(options.weight_formats, options.kv_formats)
    if options.unfused:
        formats = with_unfused(formats)
    batches = parse_numbers(options.batches, "--batch")
    cache_dir = resolve_cache_dir(options.cache_dir)
    num_threads = options.threads or num_cores()
    model = BenchedModel.open(options.model, cache_dir, report=progress)
    longest = model.config.max_context_length
    cells = standard_cells(batches, options.context, options.prompt, longest)
    pack_formats(options.model, formats, cache_dir)
    workload = Workload(cells, model.config.vocab_size)
    with opened_engines(model, formats, workload, num_threads, report=progress) as engines:
        most = max(each.num_bytes(cell) for each in engines for cell in cells)
        with MeasuredMachine.opened(num_threads, most) as machine:
            results, peaks = measure(
                engines, cells, workload, machine, options.rounds, report=progress
            )
    rows = bench_report.rows_of(results)
    typer.echo(table([each.step_ms for each in results]))
    typer.echo(f"\n{bench_report.roofline_table(rows)}")
    if options.unfused:
        typer.echo(f"\n{bench_report.fusion_table(results)}")
    typer.echo(f"\n{bench_report.peak_line(machine, peaks.estimates())}")
    if options.json_file is not None:
        settings = {
            "model": options.model,
            "threads": num_threads,
            "rounds": options.rounds,
            "prompt": options.prompt,
        }
        written = bench_report.as_json(results, machine, peaks.estimates(), settings)
        options.json_file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if options.plot_file is not None:
        bench_plot.plot(rows, options.plot_file)


def parse_formats(weight_formats: str, kv_formats: str | None) -> list[EngineFormat]:
    """Return what `--format` and `--kv-format` ask for. Raises ConfigurationError."""
    weights = parse_names(weight_formats, "--format", (*get_args(WeightFormat), TORCH))
    if kv_formats is None:
        kv: list[str] = [KV_BESIDE.get(each, "float32") for each in weights]
    else:
        kv = parse_names(kv_formats, "--kv-format", get_args(KvFormat))
        kv = kv * len(weights) if len(kv) == 1 else kv
    if len(kv) != len(weights):
        raise ConfigurationError(
            f"--kv-format names {len(kv)} formats and --format {len(weights)}: give one for all, "
            "or one each"
        )
    return list(dict.fromkeys(map(_engine_format, weights, kv)))


def _engine_format(weights: str, kv: str) -> EngineFormat:
    if weights == TORCH:
        return EngineFormat(TORCH, "float32", is_fused=False)
    return EngineFormat(weights, kv)


def with_unfused(formats: list[EngineFormat]) -> list[EngineFormat]:
    """Put the same engine without fusing behind each that fuses."""
    pairs = ([each, replace(each, is_fused=False)] for each in formats)
    return list(dict.fromkeys(each for pair in pairs for each in pair))


def parse_numbers(text: str, option: str) -> list[int]:
    """Return the numbers of a list with commas. Raises ConfigurationError."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigurationError(f"{option} is {text!r}: write for example 1,8,32") from error
    if min(numbers) < 1:
        raise ConfigurationError(f"{option} is {text!r}: every number is at least 1")
    return list(dict.fromkeys(numbers))


def pack_formats(model: str, formats: list[EngineFormat], cache_dir: Path) -> None:
    """Make the packed weights that are missing."""
    for weights in dict.fromkeys(each.weights for each in formats):
        if weights != TORCH:
            pack_once(model, cast("WeightFormat", weights), cache_dir)
