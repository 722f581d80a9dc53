"""The options of `slipstream profile`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_WHAT = "What is looked at"
_REPORT = "The report"


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Which stack, how long, under which load, and what is said of it."""

    nats: Annotated[
        str | None,
        typer.Option(
            envvar="SLIPSTREAM_NATS_URL",
            help="NATS server of a running stack (default: the local one; with --load, a stack "
            "of its own).",
            rich_help_panel=_WHAT,
        ),
    ] = None
    seconds: Annotated[
        float,
        typer.Option(
            min=0.5, max=3600, help="How long, and how long --flame looks.", rich_help_panel=_WHAT
        ),
    ] = 10.0
    load: Annotated[
        str | None,
        typer.Option(
            help="Keep requests running meanwhile: streams=8,prompt=128,output=128.",
            rich_help_panel=_WHAT,
        ),
    ] = None
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write all figures to this file.", rich_help_panel=_REPORT),
    ] = None
    flame_file: Annotated[
        Path | None,
        typer.Option(
            "--flame",
            help="Draw a flame graph of the decode worker's Python into this file (.svg); needs "
            "py-spy, and the right to look into the process.",
            rich_help_panel=_REPORT,
        ),
    ] = None
