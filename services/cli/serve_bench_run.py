"""What `slipstream bench serve` does with its options."""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import typer

from slipstream.services.cli import serve_bench_plot as plots
from slipstream.services.cli import serve_bench_report as report
from slipstream.services.cli.bench_plot import check_plotting
from slipstream.services.cli.console import progress, quiet_logs
from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.serve_bench import Bench
from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.services.cli.serve_bench_options import ServeBenchOptions
from slipstream.services.cli.serve_bench_plan import ServePlan, make_plan
from slipstream.services.cli.serve_bench_report import Measured
from slipstream.services.cli.serve_bench_stacks import (
    Mode,
    connected_client,
    mode_of,
    named_mode,
    opened_engine,
    started_client,
)
from slipstream.services.cli.serve_bench_table import as_text
from slipstream.services.cli.serve_bench_tuning import Try, levels_of, tune
from slipstream.services.cli.stack_options import StackOptions
from slipstream.shared.config import DecodeConfig
from slipstream.shared.measure.load.engine import SteppedEngine
from slipstream.shared.worker.model_source import ServedModel, open_model


def run_serve_bench(options: ServeBenchOptions, stack: StackOptions) -> None:
    """Measure; print tables, write files. Raises SlipstreamError."""
    quiet_logs()
    if options.plot_dir is not None:
        check_plotting()
    settings = stack.prepare(is_log_json=True)
    single = mode_of(settings)
    model = open_model(single.config(DecodeConfig, "decode"))
    plan = make_plan(options, model.config.vocab_size, model.config.max_context_length)
    if options.url is not None:
        # Nobody here knows what runs there.
        single = replace(single, name="running")
    modes = [named_mode(name, settings) for name in plan.modes] or [single]
    interruption = Interruption()
    measured = asyncio.run(interruption.guard(_measure(plan, modes, model, interruption)))
    if measured is None:
        raise typer.Exit(128 + (interruption.number or 0))
    typer.echo(as_text(measured))
    if options.json_file is not None:
        text = json.dumps(report.as_json(measured, settings), indent=1)
        options.json_file.write_text(f"{text}\n", encoding="utf-8")
    if options.plot_dir is not None:
        plots.draw(measured, options.plot_dir)


async def _measure(
    plan: ServePlan, modes: Sequence[Mode], model: ServedModel, interruption: Interruption
) -> Measured:
    options = plan.options
    if options.url is not None:
        progress(f"measuring what runs on {options.url}, and no engine beside it")
        async with connected_client(options.url) as client:
            return await _run(plan, modes, {modes[0].name: client}, {}, ())
    tries: Sequence[Try] = ()
    if plan.modes:
        tries = await tune(plan, modes, interruption)
        modes = [each.mode for each in tries if each.is_taken]
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            mode.name: await stack.enter_async_context(started_client(mode, interruption))
            for mode in modes
        }
        engines = {}
        if options.in_process:
            # The engine alone has no prefill worker; of several modes the first has it beside it.
            engine = opened_engine(modes[0], model, plan.max_num_tokens)
            engines[modes[0].name] = stack.enter_context(engine)
        return await _run(plan, modes, clients, engines, tries)


async def _run(
    plan: ServePlan,
    modes: Sequence[Mode],
    clients: Mapping[str, LoadClient],
    engines: Mapping[str, SteppedEngine],
    tries: Sequence[Try],
) -> Measured:
    levels, highest_rate = await levels_of(plan, modes[0], clients[modes[0].name])
    cells = await Bench(plan, clients, engines).measure(levels)
    return Measured(plan, modes, cells, tries, highest_rate)
