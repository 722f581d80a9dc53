"""The options of `slipstream bench serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

Pattern = Literal["poisson", "bursts", "even"]

_LOAD = "The load"
_RUN = "The run"
_REPORT = "The report"


@dataclass(frozen=True, kw_only=True)
class ServeBenchOptions:
    """What is asked of a stack, how long, and what is said of it."""

    streams: Annotated[
        str | None,
        typer.Option(
            help="Closed loop: so many requests at any moment, with commas (default: 32).",
            rich_help_panel=_LOAD,
        ),
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(
            help="Open loop: requests a second on average, with commas.", rich_help_panel=_LOAD
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Take lengths and, unless --streams is given, times from this file: Azure (CSV) "
            "or Mooncake (JSON lines).",
            rich_help_panel=_LOAD,
        ),
    ] = None
    load: Annotated[
        str,
        typer.Option(
            help="Rates where none is given: parts of what the stack can do, which is measured.",
            rich_help_panel=_LOAD,
        ),
    ] = "0.25,0.5,0.75,1,1.25"
    pattern: Annotated[
        Pattern,
        typer.Option(
            "--arrivals",
            help="How requests come at a --rate, without --trace.",
            rich_help_panel=_LOAD,
        ),
    ] = "poisson"
    burst: Annotated[
        int, typer.Option(min=2, help="Requests of one burst.", rich_help_panel=_LOAD)
    ] = 8
    pause: Annotated[
        float,
        typer.Option(
            min=0,
            help="Mean milliseconds between an answer and the next request of its stream.",
            rich_help_panel=_LOAD,
        ),
    ] = 50.0
    prompt: Annotated[
        int, typer.Option(min=1, help="Mean tokens of prompts.", rich_help_panel=_LOAD)
    ] = 128
    output: Annotated[
        int, typer.Option(min=1, help="Mean tokens of answers.", rich_help_panel=_LOAD)
    ] = 128
    spread: Annotated[
        float,
        typer.Option(
            min=0, max=0.99, help="Lengths vary by this part of the mean.", rich_help_panel=_LOAD
        ),
    ] = 0.5
    context: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Scale the trace so that 99 of 100 requests fit into so many tokens (default: "
            "the model's context).",
            rich_help_panel=_LOAD,
        ),
    ] = None
    classes: Annotated[
        str,
        typer.Option(
            help="Latency classes with their shares: interactive:3,batch:1. Beside interactive "
            "requests others leave some seats free.",
            rich_help_panel=_LOAD,
        ),
    ] = "interactive"
    tenants: Annotated[
        str | None,
        typer.Option(help="Tenants with their shares: a:1,b:1.", rich_help_panel=_LOAD),
    ] = None
    seed: Annotated[int, typer.Option(help="Of all that is drawn.", rich_help_panel=_LOAD)] = 1

    url: Annotated[
        str | None,
        typer.Option(
            help="Measure the stack that runs on this NATS server (default: start one).",
            rich_help_panel=_RUN,
        ),
    ] = None
    compare: Annotated[
        str | None,
        typer.Option(
            help="Run stacks of these modes beside each other: aggregated,disaggregated.",
            rich_help_panel=_RUN,
        ),
    ] = None
    budgets: Annotated[
        str,
        typer.Option(
            help="Token budgets of a step that are tried for each mode of --compare first.",
            rich_help_panel=_RUN,
        ),
    ] = "128,512,2048"
    prompt_steps: Annotated[
        str,
        typer.Option(
            help="Longest steps of prompts (ms) that are tried with each of those.",
            rich_help_panel=_RUN,
        ),
    ] = "100"
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Length of a window.", rich_help_panel=_RUN)
    ] = 20.0
    warmup: Annotated[
        float, typer.Option(min=0, help="Seconds of load before it.", rich_help_panel=_RUN)
    ] = 5.0
    drain: Annotated[
        float,
        typer.Option(min=0, help="Seconds behind it for late answers.", rich_help_panel=_RUN),
    ] = 60.0
    tune_seconds: Annotated[
        float,
        typer.Option(
            min=0.1, help="Length of a window while budgets are tried.", rich_help_panel=_RUN
        ),
    ] = 10.0
    rounds: Annotated[
        int, typer.Option(min=1, help="Windows of each load and mode.", rich_help_panel=_RUN)
    ] = 3
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process/--no-in-process",
            help="Run each load through the engine alone, too, in turns.",
            rich_help_panel=_RUN,
        ),
    ] = True

    targets: Annotated[
        str | None,
        typer.Option(
            help="What counts as good: milliseconds to the first token / per token after it, for "
            "all or by class: 1000/100,batch=30000/1000 (default: what classes promise, 100 per "
            "token).",
            rich_help_panel=_REPORT,
        ),
    ] = None
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write all figures to this file.", rich_help_panel=_REPORT),
    ] = None
    plot_dir: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw latency.png and timeline.png in this directory, and crossover.png.",
            rich_help_panel=_REPORT,
        ),
    ] = None
