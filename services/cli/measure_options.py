"""Options of the commands that measure: `slipstream bench`, `roofline` and `eval`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from slipstream.services.cli.model_commands import CacheDir
from slipstream.shared.config import DEFAULT_MODEL

LOCAL = "local"
# Whole windows that score more than 8,000 positions of a text: each but a window's first token.
_WINDOW = 512
_NUM_EVAL_TOKENS = 16 * _WINDOW

ModelName = Annotated[
    str,
    typer.Option(
        envvar="SLIPSTREAM_MODEL", help="Name, Hugging Face directory, GGUF file or hub id."
    ),
]


@dataclass(frozen=True, kw_only=True)
class EngineBenchOptions:
    """What is timed."""

    model: ModelName = DEFAULT_MODEL
    weight_formats: Annotated[
        str,
        typer.Option("--format", help="Formats of the weights, with commas; torch is plain torch."),
    ] = "float32,int8,int4"
    kv_formats: Annotated[
        str | None,
        typer.Option("--kv-format", help="One for all, or one each (default: as the weights)."),
    ] = None
    unfused: Annotated[
        bool, typer.Option("--unfused", help="Time each native engine op by op, too.")
    ] = False
    batches: Annotated[
        str, typer.Option("--batch", help="Sequences that decode together, with commas.")
    ] = "1,8,32"
    context: Annotated[
        int, typer.Option(min=1, help="Positions that each sequence has in the cache.")
    ] = 540
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prefill.")] = 512
    threads: Annotated[
        int | None,
        typer.Option(envvar="SLIPSTREAM_THREADS", min=1, help="Default: all cores."),
    ] = None
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each step.")] = 9
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write figures and samples to this file, too.")
    ] = None
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw step times into this file (.png, .svg).")
    ] = None
    cache_dir: CacheDir = None


@dataclass(frozen=True, kw_only=True)
class PrefixBenchOptions:
    """Which prompts, and how their KV travels."""

    model: ModelName = DEFAULT_MODEL
    weight_format: Annotated[
        str, typer.Option("--format", help="Format of the weights: auto, float32, int8 or int4.")
    ] = "auto"
    prompts: Annotated[str, typer.Option(help="Prompt lengths in tokens, with commas.")] = (
        "128,512,1500"
    )
    planes: Annotated[
        str, typer.Option(help="How hand-overs travel: shared_memory, tcp, nats, with commas.")
    ] = "shared_memory,tcp,nats"
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each figure.")] = 9
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write figures and intervals to this file, too.")
    ] = None
    cache_dir: CacheDir = None


@dataclass(frozen=True, kw_only=True)
class RooflineOptions:
    """The model, the machine, and the steps."""

    model: Annotated[
        str,
        typer.Option(
            envvar="SLIPSTREAM_MODEL",
            help="Name, Hugging Face directory, GGUF file or hub id; or 7b, the textbooks' model.",
        ),
    ] = DEFAULT_MODEL
    hardware: Annotated[
        str,
        typer.Option(help="local measures this machine; or A100-80G, H100, H200, L4, RTX-4090."),
    ] = LOCAL
    weight_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="float32, float16, bf16, int8 or int4 (default: int8 here, float16 on a GPU).",
        ),
    ] = None
    kv_format: Annotated[
        str | None,
        typer.Option(help="float32, float16, bf16 or int8 (default: as for --format)."),
    ] = None
    batch: Annotated[int, typer.Option(min=1, help="Sequences that decode together.")] = 1
    context: Annotated[
        int | None,
        typer.Option(min=0, help="Positions that each has in the cache (default: 540; 7b: 0)."),
    ] = None
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prefill.")] = 512
    threads: Annotated[
        int | None,
        typer.Option(envvar="SLIPSTREAM_THREADS", min=1, help="Of this machine (default: all)."),
    ] = None
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each measure.")] = 5
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file, too.")
    ] = None
    cache_dir: CacheDir = None


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What is compared, and on what."""

    model: ModelName = DEFAULT_MODEL
    weight_formats: Annotated[
        str, typer.Option("--format", help="Formats of the weights, with commas between them.")
    ] = "int8,int4"
    kv_formats: Annotated[
        str,
        typer.Option("--kv-format", help="Formats of the KV cache; each goes with each of those."),
    ] = "int8"
    text: Annotated[
        list[Path] | None,
        typer.Option(help="A file to evaluate on; may be repeated (default: prose and code)."),
    ] = None
    tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help="Tokens of each text, rounded up to whole windows; with fewer than 2,000 the "
            "intervals are rough.",
        ),
    ] = _NUM_EVAL_TOKENS
    window: Annotated[
        int, typer.Option(help="Tokens that are computed as one sequence, without what was before.")
    ] = _WINDOW
    threads: Annotated[
        int | None,
        typer.Option(
            envvar="SLIPSTREAM_THREADS",
            min=1,
            help="Threads of the forward pass (default: all cores); figures don't depend on it.",
        ),
    ] = None
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file, too.")
    ] = None
    cache_dir: CacheDir = None
