"""`slipstream draft train`: make a draft of a target's own layers."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.services.cli.console import progress, resolve_cache_dir
from slipstream.services.cli.model_commands import CacheDir
from slipstream.shared.config import DEFAULT_MODEL

_MINUTES = 40.0
_ANSWERS = 12_288


def draft_app(command: Callable[..., None], text: str) -> typer.Typer:
    """Return a group that runs the worker by its own name, and has other commands beside it."""
    app = typer.Typer(invoke_without_command=True, help=text)
    app.callback()(_unless_other(command))
    app.command()(train)
    return app


def train(
    model: Annotated[str, typer.Option(help="The target, as elsewhere.")] = DEFAULT_MODEL,
    layers: Annotated[
        int, typer.Option(min=0, help="First layers of the target that the draft keeps.")
    ] = 6,
    blocks: Annotated[int, typer.Option(min=1, max=4, help="Blocks that are trained.")] = 1,
    tokens: Annotated[int, typer.Option(min=32, help="Tokens that the draft can say.")] = 8192,
    answers: Annotated[
        int, typer.Option(min=64, help="Answers of the target that it learns from.")
    ] = _ANSWERS,
    minutes: Annotated[float, typer.Option(min=0.01, help="How long it learns.")] = _MINUTES,
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0: one a core.")] = 0,
    out: Annotated[Path, typer.Option(help="The file that is written.", dir_okay=False)] = Path(
        "draft.safetensors"
    ),
    cache_dir: CacheDir = None,
) -> None:
    """
    Train a draft of the target's first layers on its own answers, on the CPU.

    The target answers prompts that lie in the program, then blocks behind its first layers learn to
    say the same. What it answered is kept in the cache, so another try begins with the learning.
    Use the file with --draft-kind layers --draft-model FILE. For example:

      slipstream draft train --out my-draft.safetensors --minutes 40
    """
    from slipstream.shared.drafting.recipe import Recipe, train_draft  # noqa: PLC0415 - torch

    recipe = Recipe(
        num_layers=layers,
        num_blocks=blocks,
        num_head_tokens=tokens,
        num_answers=answers,
        seconds=minutes * 60,
        num_threads=threads,
    )
    found = train_draft(model, resolve_cache_dir(cache_dir), recipe, out, report=progress)
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB; accepted of held-out answers: {found}")


def _unless_other(command: Callable[..., None]) -> Callable[..., None]:
    def callback(ctx: typer.Context, **values: Any) -> None:  # Any: option values of every type
        if ctx.invoked_subcommand is None:
            command(**values)

    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *inspect.signature(command).parameters.values()]
    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    callback.__annotations__ = {each.name: each.annotation for each in parameters}
    return callback
