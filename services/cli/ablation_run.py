"""What `slipstream bench ablation` does with its options."""

import asyncio
import json
from collections.abc import Sequence

import typer

from slipstream.services.cli import ablation_plot as plots
from slipstream.services.cli import ablation_report as report
from slipstream.services.cli.ablation import Ablation
from slipstream.services.cli.ablation_layers import (
    EVERYTHING_ON,
    Layer,
    chosen_layers,
    variants_of,
)
from slipstream.services.cli.ablation_options import AblationOptions
from slipstream.services.cli.ablation_workload import make_workload
from slipstream.services.cli.bench_plot import check_plotting
from slipstream.services.cli.console import progress, quiet_logs
from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.model_commands import pack_once
from slipstream.services.cli.serve_bench_stacks import Mode
from slipstream.services.cli.stack import StackSettings
from slipstream.shared.config import DecodeConfig
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.worker.model_source import open_model


def run_ablation(asked: AblationOptions) -> None:
    """Measure; print the table, write files. Raises SlipstreamError."""
    quiet_logs()
    options = asked.settled
    _check_files(options)
    layers = chosen_layers(options.layers, is_native=options.engine in ("auto", "native"))
    settings = options.stack.prepare(is_log_json=True)
    _pack(layers, settings)
    everything_on = Mode(name=EVERYTHING_ON, settings=settings)
    model = open_model(everything_on.config(DecodeConfig, "decode"))
    workload = make_workload(
        options, Tokenizer(model.directory).encode, model.config.max_context_length
    )
    variants = variants_of(layers, settings, has_everything_off=options.layers is None)
    interruption = Interruption()
    ablation = Ablation(workload, options.rounds, interruption, progress)
    measured = asyncio.run(interruption.guard(ablation.measure(everything_on, variants)))
    if measured is None:
        raise typer.Exit(128 + (interruption.number or 0))
    rows = report.rows_of(measured)
    typer.echo(report.table(rows))
    if options.json_file is not None:
        found = report.as_json(measured, rows, workload, options, settings)
        options.json_file.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")
    if options.plot_file is not None:
        plots.plot(rows, options.plot_file)
    report.check_tokens(rows)


def _check_files(options: AblationOptions) -> None:
    """Find out now, not when everything has been measured. Raises ConfigurationError."""
    if options.plot_file is not None:
        check_plotting()
    for option, path in (("--json", options.json_file), ("--plot", options.plot_file)):
        if path is not None and not path.parent.is_dir():
            raise ConfigurationError(
                f"{option} {path}: there is no directory {path.parent}; make it"
            )


def _pack(layers: Sequence[Layer], settings: StackSettings) -> None:
    """Have the weights of all variants packed before any of them starts."""
    for layer in layers:
        weight_format = layer.taken_from(settings).weight_format
        if layer.is_of_engine and weight_format != "auto":
            pack_once(settings.model, weight_format, settings.cache_dir)
