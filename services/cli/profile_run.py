"""What `slipstream profile` does with its options."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

import typer

from slipstream.services.cli import profile_flame as flame
from slipstream.services.cli import profile_report as report
from slipstream.services.cli.connection import operator_access
from slipstream.services.cli.console import progress, quiet_logs
from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.profile_child import check_command
from slipstream.services.cli.profile_load import LoadShape, kept_running, parse_load
from slipstream.services.cli.profile_look import Look, look_at_command
from slipstream.services.cli.profile_options import ProfileOptions
from slipstream.services.cli.serve_bench_stacks import Mode, mode_of, started_stack
from slipstream.services.cli.stack_options import StackOptions
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.client.counters import ProcessSpan
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.nats_config import DEFAULT_NATS_URL

_CONNECT_S = 3.0


def run_profile(options: ProfileOptions, stack: StackOptions, command: Sequence[str]) -> None:
    """Look; print the table, write files. Raises SlipstreamError."""
    quiet_logs()
    _check(options, command)
    load = None if options.load is None else parse_load(options.load)
    mode = None
    if load is not None and options.nats is None:
        mode = mode_of(stack.prepare(is_log_json=True))
    interruption = Interruption()
    spans = asyncio.run(interruption.guard(_spans(options, command, load, mode, interruption)))
    if spans is None:
        raise typer.Exit(128 + (interruption.number or 0))
    found = report.report_of(spans)
    typer.echo(report.table(found))
    if options.json_file is not None:
        text = json.dumps(found, indent=1)
        options.json_file.write_text(f"{text}\n", encoding="utf-8")


def _check(options: ProfileOptions, command: Sequence[str]) -> None:
    if options.json_file is not None and not options.json_file.parent.is_dir():
        raise ConfigurationError(
            f"--json {options.json_file}: there is no directory {options.json_file.parent}; make it"
        )
    if options.flame_file is not None:
        flame.find_program(options.flame_file)
    if not command:
        return
    if options.load is not None:
        raise ConfigurationError(
            f"--load and -- {command[0]}: the command brings its own load; give one of the two"
        )
    check_command(command)


async def _spans(
    options: ProfileOptions,
    command: Sequence[str],
    load: LoadShape | None,
    mode: Mode | None,
    interruption: Interruption,
) -> list[ProcessSpan]:
    if command:
        return await look_at_command(command, options)
    async with _stack_url(options, mode, interruption) as url:
        bus = await NatsBus.connect(
            url, "profile", operator_access(url), connect_timeout_s=_CONNECT_S
        )
        try:
            look = Look(bus, options, url)
            async with kept_running(bus, load, options.seconds):
                return await look.spans()
        finally:
            await bus.close()


@contextlib.asynccontextmanager
async def _stack_url(
    options: ProfileOptions, mode: Mode | None, interruption: Interruption
) -> AsyncIterator[str]:
    """Yield the address of the stack that runs, or of one that is started."""
    if mode is None:
        url = options.nats or DEFAULT_NATS_URL
        progress(f"looking at what runs on {url} for {options.seconds:g} s")
        yield url
        return
    async with started_stack(mode, interruption) as url:
        yield url
