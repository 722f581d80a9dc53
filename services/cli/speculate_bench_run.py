"""What `slipstream bench speculate` does with its options."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import typer

from slipstream.services.cli import speculate_bench_plot as plots
from slipstream.services.cli import speculate_bench_report as report
from slipstream.services.cli.bench_plot import check_plotting
from slipstream.services.cli.connection import operator_access
from slipstream.services.cli.console import progress, quiet_logs
from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.serve_bench_stacks import Mode, mode_of, started_stack
from slipstream.services.cli.speculate_bench import CellResult, SpeculateBench
from slipstream.services.cli.speculate_bench_options import SpeculateBenchOptions
from slipstream.services.cli.speculate_bench_plan import SpeculatePlan, make_plan
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.config import DraftKind


def run_speculate_bench(options: SpeculateBenchOptions) -> None:
    """Measure; print the table, write files. Raises SlipstreamError."""
    quiet_logs()
    if options.plot_file is not None:
        check_plotting()
    plan = make_plan(options)
    modes: dict[DraftKind, Mode | None] = dict.fromkeys(plan.drafts)
    if options.url is None:
        modes = {
            kind: mode_of(options.stack(kind).prepare(is_log_json=True)) for kind in plan.drafts
        }
    interruption = Interruption()
    results = asyncio.run(interruption.guard(_measure(plan, options.url, modes, interruption)))
    if results is None:
        raise typer.Exit(128 + (interruption.number or 0))
    rows = [report.row_of(each) for each in results]
    typer.echo(report.table(rows))
    if options.json_file is not None:
        text = json.dumps(report.as_json(results, options), indent=1)
        options.json_file.write_text(f"{text}\n", encoding="utf-8")
    if options.plot_file is not None:
        plots.plot(rows, options.plot_file)


async def _measure(
    plan: SpeculatePlan,
    url: str | None,
    modes: Mapping[DraftKind, Mode | None],
    interruption: Interruption,
) -> list[CellResult]:
    """Measure one kind of draft after another, each in turns with none."""
    found: list[CellResult] = []
    for kind, mode in modes.items():
        async with _stack_url(url, mode, interruption) as nats_url:
            bus = await NatsBus.connect(nats_url, "bench-speculate", operator_access(nats_url))
            try:
                found += await SpeculateBench(replace(plan, drafts=[kind]), bus, progress).measure()
            finally:
                await bus.close()
    return found


@contextlib.asynccontextmanager
async def _stack_url(
    url: str | None, mode: Mode | None, interruption: Interruption
) -> AsyncIterator[str]:
    """Yield the address of the stack that runs, or of one that is started."""
    if url is not None:
        progress(f"measuring what runs on {url}")
        yield url
        return
    assert mode is not None, "prepared where there is no address"
    async with started_stack(mode, interruption) as nats_url:
        yield nats_url
