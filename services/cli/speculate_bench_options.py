"""The options of `slipstream bench speculate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from slipstream.services.cli.measure_options import ModelName
from slipstream.services.cli.model_commands import CacheDir
from slipstream.services.cli.stack_options import StackOptions
from slipstream.shared.config import DEFAULT_MODEL, DraftKind, DraftPlace, KvChoice, WeightChoice

_ASKED = "What is asked"
_RUN = "The run"
_REPORT = "The report"


@dataclass(frozen=True, kw_only=True)
class SpeculateBenchOptions:
    """Which prompts, how they are decoded, and how well figures are to be known."""

    sets: Annotated[
        str, typer.Option(help="Kinds of prompts, with commas.", rich_help_panel=_ASKED)
    ] = "chat,copy_edit,code,summarize"
    prompts: Annotated[
        int | None,
        typer.Option(
            min=1, help="The first so many of each (default: all).", rich_help_panel=_ASKED
        ),
    ] = None
    batches: Annotated[
        str,
        typer.Option(
            "--batch", help="Sequences that decode together, with commas.", rich_help_panel=_ASKED
        ),
    ] = "1,4,8"
    drafts: Annotated[
        str,
        typer.Option(
            "--draft",
            help="Kinds of draft, with commas: ngram, model, layers, auto.",
            rich_help_panel=_ASKED,
        ),
    ] = "ngram"
    draft_model: Annotated[
        str | None,
        typer.Option(
            envvar="SLIPSTREAM_DRAFT_MODEL",
            help="For model: which one; for layers and auto: a file of slipstream draft train.",
            show_default="the shipped draft",
            rich_help_panel=_RUN,
        ),
    ] = None
    draft_place: Annotated[
        DraftPlace,
        typer.Option(
            help="Who drafts: the decode worker, or a draft worker.", rich_help_panel=_RUN
        ),
    ] = "decode"
    temperatures: Annotated[
        str,
        typer.Option("--temperature", help="With commas; 0 is greedy.", rich_help_panel=_ASKED),
    ] = "0,0.7"
    output: Annotated[
        int, typer.Option(min=16, help="Tokens of each answer.", rich_help_panel=_ASKED)
    ] = 128
    seed: Annotated[
        int, typer.Option(min=0, help="Of the first prompt; others follow.", rich_help_panel=_ASKED)
    ] = 1

    model: ModelName = DEFAULT_MODEL
    weight_format: Annotated[
        WeightChoice,
        typer.Option("--format", help="Format of the weights.", rich_help_panel=_RUN),
    ] = "auto"
    kv_format: Annotated[
        KvChoice, typer.Option(help="Format of the KV cache.", rich_help_panel=_RUN)
    ] = "auto"
    threads: Annotated[
        int | None,
        typer.Option(
            envvar="SLIPSTREAM_THREADS",
            min=1,
            help="Most threads of a step (default: every core that is free).",
            rich_help_panel=_RUN,
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            help="Measure the stack that runs on this NATS server (default: start one).",
            rich_help_panel=_RUN,
        ),
    ] = None
    max_pairs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Passes over a set, with and without drafts, at most: fewer once the interval "
            "is narrower than 0.02.",
            rich_help_panel=_RUN,
        ),
    ] = 20

    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write all figures to this file.", rich_help_panel=_REPORT),
    ] = None
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="Draw speed-ups into this file (.png, .svg).", rich_help_panel=_REPORT
        ),
    ] = None
    cache_dir: CacheDir = None

    def stack(self, draft_kind: DraftKind) -> StackOptions:
        """Return one decode worker, which computes prompts, and whoever drafts."""
        return StackOptions(
            model=self.model,
            cache_dir=self.cache_dir,
            route="local",
            weight_format=self.weight_format,
            kv_format=self.kv_format,
            prefill=0,
            draft=int(self.draft_place == "draft"),
            draft_kind=draft_kind,
            draft_model=self.draft_model if draft_kind != "ngram" else None,
            threads=self.threads,
        )
