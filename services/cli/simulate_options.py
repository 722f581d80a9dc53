"""Options of `slipstream simulate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from slipstream.shared.config import (
    DEFAULT_MODEL,
    DecodeConfig,
    Engine,
    PrefillConfig,
    SchedulerConfig,
)
from slipstream.shared.messages.common import Route
from slipstream.shared.scheduling.queue import Policy

_CLUSTER = "The cluster"
_LOAD = "The load"
_COSTS = "What things cost"
_PLANNING = "Planning"
_VALIDATION = "Validation"


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """How many of what, and by which rules."""

    prefill: Annotated[
        int, typer.Option(min=0, help="Prefill workers.", rich_help_panel=_CLUSTER)
    ] = 1
    decode: Annotated[
        int, typer.Option(min=1, help="Decode workers.", rich_help_panel=_CLUSTER)
    ] = 1
    hosts: Annotated[
        int,
        typer.Option(min=1, help="Hosts over which they are spread.", rich_help_panel=_CLUSTER),
    ] = 1
    apart: Annotated[
        bool,
        typer.Option(
            "--apart",
            help="Prefill workers have hosts of their own: KV travels.",
            rich_help_panel=_CLUSTER,
        ),
    ] = False
    prefill_seats: Annotated[
        int,
        typer.Option(min=1, help="Prompts that a prefill worker holds.", rich_help_panel=_CLUSTER),
    ] = PrefillConfig.num_seats
    decode_seats: Annotated[
        int,
        typer.Option(min=1, help="Sequences that a decode worker holds.", rich_help_panel=_CLUSTER),
    ] = DecodeConfig.num_seats
    token_budget: Annotated[
        int,
        typer.Option(min=1, help="Rows of prompt a step may take.", rich_help_panel=_CLUSTER),
    ] = PrefillConfig.token_budget
    prompt_step_ms: Annotated[
        float,
        typer.Option(min=1, help="Longest step of prompts alone.", rich_help_panel=_CLUSTER),
    ] = PrefillConfig.prompt_step_ms
    step_stretch: Annotated[
        float,
        typer.Option(
            min=1.1,
            help="Longest step with prompts, in steps of its streams.",
            rich_help_panel=_CLUSTER,
        ),
    ] = DecodeConfig.step_stretch
    policy: Annotated[
        Policy, typer.Option(help="Order of the queue.", rich_help_panel=_CLUSTER)
    ] = SchedulerConfig.policy
    min_remote_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="Tokens of a prompt below which auto prefills on decode.",
            rich_help_panel=_CLUSTER,
        ),
    ] = SchedulerConfig.min_num_remote_tokens
    reserved_seats: Annotated[
        int,
        typer.Option(
            min=0,
            help="Seats of each decode worker for interactive requests only.",
            rich_help_panel=_CLUSTER,
        ),
    ] = SchedulerConfig.num_reserved_seats
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Requests that may wait.", rich_help_panel=_CLUSTER)
    ] = SchedulerConfig.max_num_waiting
    deadline_s: Annotated[
        float,
        typer.Option(
            min=0.001, help="Seconds that one may wait; batch: an hour.", rich_help_panel=_CLUSTER
        ),
    ] = SchedulerConfig.default_deadline_ms / 1000
    look_every_ms: Annotated[
        float,
        typer.Option(
            min=0,
            help="How long a look at the queue waits for more room; 0: none.",
            rich_help_panel=_CLUSTER,
        ),
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Who asks, when, and for how much."""

    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Requests a second (default: 1, or those of the trace).",
            rich_help_panel=_LOAD,
        ),
    ] = None
    streams: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Instead: so many clients, each asks when it has its answer.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    bursts: Annotated[
        str | None,
        typer.Option(
            help="FACTOR:PERIOD:SECONDS: so many times the rate, at the beginning of each period.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Lengths and times from a file: Azure CSV, Mooncake JSON lines.",
            rich_help_panel=_LOAD,
        ),
    ] = None
    poisson: Annotated[
        bool,
        typer.Option(
            "--poisson",
            help="Only lengths from the trace: requests come at random.",
            rich_help_panel=_LOAD,
        ),
    ] = False
    max_context: Annotated[
        int,
        typer.Option(
            min=2,
            help="Longer requests of a trace are cut to so many tokens.",
            rich_help_panel=_LOAD,
        ),
    ] = 8192
    requests: Annotated[
        int, typer.Option(min=1, help="How many requests.", rich_help_panel=_LOAD)
    ] = 1000
    prompt_tokens: Annotated[
        str, typer.Option(help="Length of prompts: 512, or 100-800.", rich_help_panel=_LOAD)
    ] = "100-800"
    output_tokens: Annotated[
        str, typer.Option(help="Length of answers, as above.", rich_help_panel=_LOAD)
    ] = "20-200"
    route: Annotated[Route, typer.Option(help="Where prefill runs.", rich_help_panel=_LOAD)] = (
        "auto"
    )
    classes: Annotated[
        str,
        typer.Option(
            help="Shares of latency classes: interactive=0.2,standard=0.8.", rich_help_panel=_LOAD
        ),
    ] = "standard=1"
    tenants: Annotated[
        str | None,
        typer.Option(help="Shares of tenants: a=0.9,b=0.1.", rich_help_panel=_LOAD),
    ] = None
    seed: Annotated[
        int, typer.Option(help="The same seed gives the same run.", rich_help_panel=_LOAD)
    ] = 1


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """What steps and messages cost."""

    costs: Annotated[
        Path | None,
        typer.Option(
            help="What `slipstream bench engine --json` or --save-costs wrote.",
            rich_help_panel=_COSTS,
        ),
    ] = None
    weight_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Of several formats in that file, or in validation (default: the first, auto).",
            rich_help_panel=_COSTS,
        ),
    ] = None
    fake: Annotated[
        str,
        typer.Option(
            help="Without a file: milliseconds a step, microseconds a row, nanoseconds a token "
            "of context, as the fake engine has them.",
            rich_help_panel=_COSTS,
        ),
    ] = "5,50,20"


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is to be found out, and how well requests are to be served."""

    plan: Annotated[
        str | None,
        typer.Option(
            help="prefill=1..8,decode=1..16: find the fewest workers that keep the targets.",
            rich_help_panel=_PLANNING,
        ),
    ] = None
    policies: Annotated[
        str | None,
        typer.Option(help="Compare policies: fcfs,sjf,fair.", rich_help_panel=_PLANNING),
    ] = None
    target_ttft_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Time to first token for 95 of 100 (default: of each class, for goodput).",
            rich_help_panel=_PLANNING,
        ),
    ] = None
    target_tpot_ms: Annotated[
        float | None,
        typer.Option(min=0, help="Time per output token for 95 of 100.", rich_help_panel=_PLANNING),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """A live stack to judge the simulator by."""

    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="Serve the load live, fit costs to one half, judge by the other; three times.",
            rich_help_panel=_VALIDATION,
        ),
    ] = False
    model: Annotated[
        str,
        typer.Option(
            envvar="SLIPSTREAM_MODEL",
            help="Name, Hugging Face directory, GGUF file or hub id.",
            rich_help_panel=_VALIDATION,
        ),
    ] = DEFAULT_MODEL
    engine: Annotated[Engine, typer.Option(help="Forward pass.", rich_help_panel=_VALIDATION)] = (
        "auto"
    )
    test_mode: Annotated[
        bool,
        typer.Option("--test-mode", help="Allow the fake engine.", rich_help_panel=_VALIDATION),
    ] = False
    runs: Annotated[
        int,
        typer.Option(min=1, help="Runs of which the median counts.", rich_help_panel=_VALIDATION),
    ] = 3
    save_costs: Annotated[
        Path | None,
        typer.Option(help="Write the costs that were fitted.", rich_help_panel=_VALIDATION),
    ] = None
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="SLIPSTREAM_CACHE_DIR",
            help="Where models are kept (default: ~/.cache/slipstream).",
            rich_help_panel=_VALIDATION,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where results go."""

    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file, too.")
    ] = None
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw into this file (.png, .svg).")
    ] = None
