"""`slipstream eval`: what formats cost in accuracy, against float32 on the same text."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from slipstream.services.cli.console import progress, resolve_cache_dir
from slipstream.services.cli.model_commands import CacheDir, pack_once
from slipstream.services.cli.option_groups import with_options
from slipstream.shared.config import DEFAULT_MODEL, KvFormat, WeightFormat
from slipstream.shared.errors import ConfigurationError

if TYPE_CHECKING:
    from slipstream.services.cli.eval_report import Row
    from slipstream.shared.measure.teacher_forcing import Evaluation, Formats, Windows
    from slipstream.shared.measure.texts import Text

_WINDOW = 512
# Whole windows that score more than 8,000 positions of a text: each but a window's first token.
_NUM_TOKENS = 16 * _WINDOW
_POOLED = "all"


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What is compared, and on what."""

    model: Annotated[
        str,
        typer.Option(
            envvar="SLIPSTREAM_MODEL", help="Name, Hugging Face directory, GGUF file or hub id."
        ),
    ] = DEFAULT_MODEL
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
    ] = _NUM_TOKENS
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


@with_options
def evaluate(options: EvalOptions = EvalOptions()) -> None:
    """
    Tell what formats cost in accuracy, against float32 on the same text.

    The native engine computes the text as it stands, and every position is scored: the ratio of
    perplexities, mean and 99th percentile of KL(float32 || format), and how often both hold the
    same token for the likeliest, each with its 95 % bootstrap interval.

    For example:

      slipstream eval

      slipstream eval --format float32,int8 --kv-format float32,int8

      slipstream eval --text novel.txt --tokens 20000 --json figures.json
    """
    # Imported here: what `slipstream --help` does not need.
    from slipstream.services.cli.eval_report import table, write_json  # noqa: PLC0415
    from slipstream.shared.measure.teacher_forcing import REFERENCE  # noqa: PLC0415

    formats = _formats(options)
    evaluation, windows = _prepare(options, _texts(options.text))
    for weight_format in dict.fromkeys(each.weights for each in (REFERENCE, *formats)):
        # The engine's formats are those that can be packed.
        pack_once(options.model, cast("WeightFormat", weight_format), evaluation.cache_dir)
    rows = _rows(evaluation, windows, formats)
    typer.echo(table(rows))
    if options.json_file is not None:
        write_json(options.json_file, evaluation, windows, rows)


def _formats(options: EvalOptions) -> "list[Formats]":
    # Imported here: as in `evaluate`.
    from slipstream.shared.measure.teacher_forcing import WEIGHT_FORMATS, Formats  # noqa: PLC0415

    weights = _listed("--format", options.weight_formats, WEIGHT_FORMATS)
    kv = _listed("--kv-format", options.kv_formats, get_args(KvFormat))
    return [Formats(one, other) for one in weights for other in kv]


def _listed(option: str, text: str, known: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{option}: {name!r} is no format of the native engine; give one or more of "
                f"{', '.join(known)}, with commas between them"
            )
    return names


def _texts(paths: list[Path] | None) -> "list[Text]":
    # Imported here: as in `evaluate`.
    from slipstream.shared.measure.texts import default_texts, read_text  # noqa: PLC0415

    return [read_text(path) for path in paths] if paths else default_texts()


def _prepare(options: EvalOptions, texts: "Sequence[Text]") -> "tuple[Evaluation, list[Windows]]":
    # Imported here: as in `evaluate`.
    from slipstream.shared.measure.teacher_forcing import Evaluation, load_library  # noqa: PLC0415
    from slipstream.shared.model.config import load_config  # noqa: PLC0415
    from slipstream.shared.model.store import resolve_model  # noqa: PLC0415

    cache_dir = resolve_cache_dir(options.cache_dir)
    model_dir = resolve_model(options.model, cache_dir, report=progress)
    evaluation = Evaluation(
        model_dir=model_dir,
        config=load_config(model_dir),
        cache_dir=cache_dir,
        library=load_library(),
        num_tokens=options.tokens,
        window=options.window,
        num_threads=options.threads or len(os.sched_getaffinity(0)),
        report=progress,
    )
    return evaluation, evaluation.cut(texts)


def _rows(
    evaluation: "Evaluation", windows: "Sequence[Windows]", formats: "Sequence[Formats]"
) -> "list[Row]":
    # Imported here: as in `evaluate`.
    from slipstream.services.cli.eval_report import Row  # noqa: PLC0415
    from slipstream.shared.measure.accuracy import summarize  # noqa: PLC0415

    on_window = _counter(len(windows) * evaluation.num_windows)
    rows = []
    for each, scores in evaluation.score(windows, formats, on_window).items():
        rows += [
            Row(each, text.name, summarize([of_text]))
            for text, of_text in zip(windows, scores, strict=True)
        ]
        rows.append(Row(each, _POOLED, summarize(scores)))
    return rows


def _counter(num_windows: int) -> Callable[[], None]:
    """Return what counts windows on a terminal, on one line."""
    num_done = 0

    def count() -> None:
        nonlocal num_done
        num_done += 1
        if sys.stderr.isatty():
            end = "\n" if num_done == num_windows else ""
            print(f"\r==> window {num_done} of {num_windows}", end=end, file=sys.stderr, flush=True)  # noqa: T201 - this is the console

    return count
