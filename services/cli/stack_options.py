"""The options that `up` and `run` share."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.services.cli.console import progress, resolve_cache_dir
from slipstream.shared.config import (
    DEFAULT_MODEL,
    DraftKind,
    Engine,
    Eviction,
    KvChoice,
    WeightChoice,
)
from slipstream.shared.messages.common import Route
from slipstream.shared.scheduling.queue import Policy

if TYPE_CHECKING:
    from slipstream.services.cli.stack import StackSettings

_PANEL = "The stack"


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """What a stack is made of."""

    model: Annotated[
        str,
        typer.Option(
            envvar="SLIPSTREAM_MODEL",
            help="Name, Hugging Face directory, GGUF file or hub id.",
            rich_help_panel=_PANEL,
        ),
    ] = DEFAULT_MODEL
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="SLIPSTREAM_CACHE_DIR",
            help="Where models are kept (default: ~/.cache/slipstream).",
            rich_help_panel=_PANEL,
        ),
    ] = None
    route: Annotated[
        Route,
        typer.Option(envvar="SLIPSTREAM_ROUTE", help="Where prefill runs.", rich_help_panel=_PANEL),
    ] = "auto"
    policy: Annotated[
        Policy | None,
        typer.Option(
            envvar="SLIPSTREAM_POLICY",
            help="Who of those waiting is next (default: priority).",
            rich_help_panel=_PANEL,
        ),
    ] = None
    engine: Annotated[
        Engine,
        typer.Option(envvar="SLIPSTREAM_ENGINE", help="Forward pass.", rich_help_panel=_PANEL),
    ] = "auto"
    weight_format: Annotated[
        WeightChoice,
        typer.Option(
            "--format",
            envvar="SLIPSTREAM_FORMAT",
            help="Format of the weights.",
            rich_help_panel=_PANEL,
        ),
    ] = "auto"
    kv_format: Annotated[
        KvChoice,
        typer.Option(
            envvar="SLIPSTREAM_KV_FORMAT",
            help="Format of the KV cache.",
            rich_help_panel=_PANEL,
        ),
    ] = "auto"
    test_mode: Annotated[
        bool,
        typer.Option(
            "--test-mode",
            envvar="SLIPSTREAM_TEST_MODE",
            help="Allow the fake engine.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    prefill: Annotated[
        int, typer.Option(min=0, help="Prefill workers.", rich_help_panel=_PANEL)
    ] = 1
    decode: Annotated[int, typer.Option(min=1, help="Decode workers.", rich_help_panel=_PANEL)] = 1
    draft: Annotated[
        int,
        typer.Option(
            min=0,
            help="Draft workers; without any, decode workers look up drafts themselves: faster.",
            rich_help_panel=_PANEL,
        ),
    ] = 1
    draft_kind: Annotated[
        DraftKind | None,
        typer.Option(
            envvar="SLIPSTREAM_DRAFT_KIND",
            help="What drafts are made of: ngram (the default), model, layers, or auto.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        typer.Option(
            envvar="SLIPSTREAM_DRAFT_MODEL",
            help="A model to draft with, or a file of slipstream draft train.",
            show_default="the shipped draft",
            rich_help_panel=_PANEL,
        ),
    ] = None
    kv_memory: Annotated[
        str | None,
        typer.Option(
            envvar="SLIPSTREAM_KV_MEMORY",
            help="Memory of the KV cache: 512MiB, 2GiB.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    prefix_cache: Annotated[
        bool | None,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            envvar="SLIPSTREAM_PREFIX_CACHE",
            help="Keep the KV of ended requests for those that begin alike (default: yes).",
            rich_help_panel=_PANEL,
        ),
    ] = None
    eviction: Annotated[
        Eviction | None,
        typer.Option(
            envvar="SLIPSTREAM_EVICTION",
            help="Which cached KV goes first: filtered (asked for once, the default), or lru.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    block_hash_bits: Annotated[
        int | None,
        typer.Option(
            envvar="SLIPSTREAM_BLOCK_HASH_BITS",
            help="Bits of a KV block's hash; fewer than 128 need --test-mode.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            envvar="SLIPSTREAM_THREADS",
            min=1,
            help="Most threads of a worker's step (default: every core that is free).",
            rich_help_panel=_PANEL,
        ),
    ] = None
    log_level: Annotated[
        str | None,
        typer.Option(
            envvar="SLIPSTREAM_LOG_LEVEL",
            help="debug, info, warning or error.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="SLIPSTREAM_METRICS_PORT",
            min=0,
            max=65535,
            help="Serve Prometheus metrics: this port and those after it, one a service; 0: free.",
            show_default="off",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def prepare(self, *, is_log_json: bool | None) -> "StackSettings":
        """Check the options and fetch the model, once for all services. Raises SlipstreamError."""
        from slipstream.kernels.cpu.loader import available_levels  # noqa: PLC0415 - keeps --help quick
        from slipstream.services.cli.model_commands import pack_once  # noqa: PLC0415 - keeps --help quick
        from slipstream.services.cli.stack import StackSettings  # noqa: PLC0415 - keeps --help quick
        from slipstream.shared.model.config import load_config  # noqa: PLC0415 - keeps --help quick
        from slipstream.shared.model.formats import choose_formats, native_gap  # noqa: PLC0415 - keeps --help quick
        from slipstream.shared.model.store import resolve_model  # noqa: PLC0415 - keeps --help quick

        settings = StackSettings(
            model=self.model,
            cache_dir=resolve_cache_dir(self.cache_dir),
            route=self.route,
            policy=self.policy,
            engine=self.engine,
            weight_format=self.weight_format,
            kv_format=self.kv_format,
            is_test_mode=self.test_mode,
            num_prefill=self.prefill,
            num_decode=self.decode,
            num_draft=self.draft,
            draft_kind=self.draft_kind,
            draft_model=self.draft_model,
            kv_memory=self.kv_memory,
            is_prefix_cache_on=self.prefix_cache,
            eviction=self.eviction,
            block_hash_bits=self.block_hash_bits,
            num_threads=self.threads,
            log_level=self.log_level,
            is_log_json=is_log_json,
            metrics_port=self.metrics_port,
        )
        directory = resolve_model(self.model, settings.cache_dir, report=progress)
        if self.engine in ("auto", "native"):
            config = load_config(directory)
            formats = choose_formats(
                directory, config, self.engine, self.weight_format, self.kv_format
            )
            progress(f"weights in {formats.weights}, KV in {formats.kv}")
            # Looked at once: not again by each service that starts.
            settings = replace(settings, weight_format=formats.weights, kv_format=formats.kv)
            if native_gap(config) is None and available_levels():
                pack_once(self.model, formats.weights, settings.cache_dir)
        return settings
