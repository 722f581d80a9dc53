"""The options of `slipstream bench ablation`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from slipstream.services.cli.measure_options import ModelName
from slipstream.services.cli.model_commands import CacheDir
from slipstream.services.cli.stack_options import StackOptions
from slipstream.shared.config import DEFAULT_MODEL, Engine, WeightChoice

_LOAD = "The load"
_RUN = "The run"
_REPORT = "The report"
_QUICK_REQUESTS, _QUICK_STREAMS = 6, 3


@dataclass(frozen=True, kw_only=True)
class AblationOptions:
    """What is asked, of which stacks, and what is said of it."""

    trace: Annotated[
        Path | None,
        typer.Option(
            help="Take lengths from this file: Azure (CSV) or Mooncake (JSON lines) (default: a "
            "slice of Azure's conversations).",
            rich_help_panel=_LOAD,
        ),
    ] = None
    requests: Annotated[
        int, typer.Option(min=1, help="Requests of the slice.", rich_help_panel=_LOAD)
    ] = 16
    streams: Annotated[
        int, typer.Option(min=1, help="Requests at any moment.", rich_help_panel=_LOAD)
    ] = 8
    context: Annotated[
        int,
        typer.Option(
            min=64,
            help="Scale lengths so that 99 of 100 requests fit into so many tokens.",
            rich_help_panel=_LOAD,
        ),
    ] = 1024
    system: Annotated[
        int,
        typer.Option(
            min=0, help="Tokens of them that all prompts begin with.", rich_help_panel=_LOAD
        ),
    ] = 192
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="Of sampling; 0 is greedy.", rich_help_panel=_LOAD)
    ] = 0.7
    seed: Annotated[
        int, typer.Option(min=0, help="Of the first request; others follow.", rich_help_panel=_LOAD)
    ] = 1

    layers: Annotated[
        str | None,
        typer.Option(help="Leave out these, with commas (default: each).", rich_help_panel=_RUN),
    ] = None
    rounds: Annotated[
        int,
        typer.Option(
            min=1,
            help="Runs without each layer, each beside one with all; fewer than 5 say nothing.",
            rich_help_panel=_RUN,
        ),
    ] = 5
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="One round of a few requests: a look, no figure.", rich_help_panel=_RUN
        ),
    ] = False
    model: ModelName = DEFAULT_MODEL
    weight_format: Annotated[
        WeightChoice,
        typer.Option("--format", help="Format of the weights.", rich_help_panel=_RUN),
    ] = "auto"
    engine: Annotated[
        Engine,
        typer.Option(
            help="With fake (a test) the layers of the forward pass are left out.",
            rich_help_panel=_RUN,
        ),
    ] = "native"
    kv_memory: Annotated[
        str,
        typer.Option(
            help="Memory of the KV cache, of which whole contexts are reserved without paging.",
            rich_help_panel=_RUN,
        ),
    ] = "512MiB"
    threads: Annotated[
        int | None,
        typer.Option(
            envvar="SLIPSTREAM_THREADS",
            min=1,
            help="Most threads of a step (default: every core that is free).",
            rich_help_panel=_RUN,
        ),
    ] = None

    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write all figures to this file.", rich_help_panel=_REPORT),
    ] = None
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw a bar for each layer into this file (.png, .svg).",
            rich_help_panel=_REPORT,
        ),
    ] = None
    cache_dir: CacheDir = None

    @property
    def settled(self) -> "AblationOptions":
        """These, or the small ones that `--quick` asks for."""
        if not self.quick:
            return self
        requests, streams = min(self.requests, _QUICK_REQUESTS), min(self.streams, _QUICK_STREAMS)
        return replace(self, requests=requests, streams=streams, rounds=1)

    @property
    def stack(self) -> StackOptions:
        """Everything on: one decode worker, which computes prompts and looks drafts up itself."""
        return StackOptions(
            model=self.model,
            cache_dir=self.cache_dir,
            route="local",
            engine=self.engine,
            weight_format=self.weight_format,
            test_mode=True,  # the only mode in which layers can be left out
            prefill=0,
            draft=0,
            kv_memory=self.kv_memory,
            threads=self.threads,
        )
