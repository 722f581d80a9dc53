"""`slipstream doctor`: what is wrong with this machine or with a running stack, and what to do."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from slipstream.services.cli.connection import NatsUrl, connected
from slipstream.services.cli.console import quiet_logs, resolve_cache_dir
from slipstream.services.cli.doctor_findings import Finding, lines_of
from slipstream.services.cli.exit_codes import FAILED
from slipstream.services.cli.model_commands import CacheDir
from slipstream.shared.config import DEFAULT_MODEL
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.nats_config import DEFAULT_NATS_URL


def doctor(
    *,
    nats: NatsUrl = DEFAULT_NATS_URL,
    model: Annotated[
        str,
        typer.Option(envvar="SLIPSTREAM_MODEL", help="The model that is to be served."),
    ] = DEFAULT_MODEL,
    cache_dir: CacheDir = None,
    arena_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="SLIPSTREAM_ARENA_DIR", help="Where KV is to lie (default: shared memory)."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """
    Look at this machine, and at the stack that runs; say what is wrong and how to mend it.

    Looks at kernels, cores, memory, disk, clocks and the model's files; then at the NATS server,
    its limits and JetStream, at the services behind it, their versions and models. Exits with 1
    if something can't work as it is.

    For example:

      slipstream doctor

      slipstream doctor --nats nats://10.0.0.5:4222 --json | jq '.[] | select(.verdict != "ok")'
    """
    quiet_logs()
    findings = [*_of_machine(model, cache_dir, arena_dir), *asyncio.run(_of_stack(nats))]
    if json:
        typer.echo(msgspec.json.encode(findings).decode())
    else:
        typer.echo("\n".join([*lines_of(findings), "", _summary(findings)]))
    if any(each.verdict == "problem" for each in findings):
        raise typer.Exit(FAILED)


def _of_machine(model: str, cache_dir: Path | None, arena_dir: Path | None) -> list[Finding]:
    from slipstream.services.cli.doctor_machine import examine, gather  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.run_directory import default_base  # noqa: PLC0415 - keeps --help quick

    return examine(gather(model, resolve_cache_dir(cache_dir), arena_dir or default_base()))


async def _of_stack(nats_url: str) -> list[Finding]:
    from slipstream.services.cli.doctor_stack import examine, gather, unreachable  # noqa: PLC0415 - keeps --help quick

    try:
        async with connected(nats_url, "doctor", is_operator=True) as bus:
            return examine(await gather(bus, nats_url))
    except ConfigurationError as error:
        return [unreachable(error)]


def _summary(findings: Sequence[Finding]) -> str:
    num_problems = sum(each.verdict == "problem" for each in findings)
    num_warnings = sum(each.verdict == "warning" for each in findings)
    if not num_problems and not num_warnings:
        return "All is well."
    return f"{num_problems} to mend, {num_warnings} to look at."
