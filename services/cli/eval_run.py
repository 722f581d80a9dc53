"""What `slipstream eval` does with its options."""

import sys
from collections.abc import Callable, Sequence
from typing import cast, get_args

import typer

from slipstream.services.cli.console import progress, resolve_cache_dir
from slipstream.services.cli.eval_report import Row, table, write_json
from slipstream.services.cli.measure_options import EvalOptions
from slipstream.services.cli.model_commands import pack_once
from slipstream.services.cli.name_lists import parse_names
from slipstream.shared.config import KvFormat, WeightFormat
from slipstream.shared.cores import num_cores
from slipstream.shared.measure.accuracy import summarize
from slipstream.shared.measure.measured_machine import native_library
from slipstream.shared.measure.teacher_forcing import REFERENCE, Evaluation, Windows
from slipstream.shared.measure.texts import Text, default_texts, read_text
from slipstream.shared.model.config import load_config
from slipstream.shared.model.formats import Formats
from slipstream.shared.model.store import resolve_model

_POOLED = "all"


def run_evaluation(options: EvalOptions) -> None:
    """Score; print the table, write the file. Raises ConfigurationError and ModelError."""
    formats = _formats(options)
    texts = [read_text(path) for path in options.text] if options.text else default_texts()
    evaluation, windows = _prepare(options, texts)
    for weights in dict.fromkeys(each.weights for each in (REFERENCE, *formats)):
        pack_once(options.model, weights, evaluation.cache_dir)
    rows = _rows(evaluation, windows, formats)
    typer.echo(table(rows))
    if options.json_file is not None:
        write_json(options.json_file, evaluation, windows, rows)


def _formats(options: EvalOptions) -> list[Formats]:
    weights = parse_names(options.weight_formats, "--format", get_args(WeightFormat))
    kv = parse_names(options.kv_formats, "--kv-format", get_args(KvFormat))
    pairs = (
        Formats(cast("WeightFormat", one), cast("KvFormat", other))
        for one in weights
        for other in kv
    )
    return list(dict.fromkeys(pairs))


def _prepare(options: EvalOptions, texts: Sequence[Text]) -> tuple[Evaluation, list[Windows]]:
    cache_dir = resolve_cache_dir(options.cache_dir)
    model_dir = resolve_model(options.model, cache_dir, report=progress)
    evaluation = Evaluation(
        model_dir=model_dir,
        config=load_config(model_dir),
        cache_dir=cache_dir,
        kernels=native_library(),
        num_tokens=options.tokens,
        window=options.window,
        num_threads=options.threads or num_cores(),
        report=progress,
    )
    return evaluation, evaluation.cut(texts)


def _rows(
    evaluation: Evaluation, windows: Sequence[Windows], formats: Sequence[Formats]
) -> list[Row]:
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
            is_last = num_done == num_windows
            typer.echo(f"\r==> window {num_done} of {num_windows}", nl=is_last, err=True)

    return count
