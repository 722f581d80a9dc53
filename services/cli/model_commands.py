"""`slipstream model`: fetch, list and remove models of the cache."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream.services.cli.console import progress, resolve_cache_dir
from slipstream.shared.config import DEFAULT_MODEL

CacheDir = Annotated[
    Path | None,
    typer.Option(
        envvar="SLIPSTREAM_CACHE_DIR", help="Where models are kept (default: ~/.cache/slipstream)."
    ),
]

app = typer.Typer(
    no_args_is_help=True,
    help="Fetch, list and remove models.\n\n"
    "For example: slipstream model pull smollm2-135m, slipstream model list",
)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A name, or a GGUF file to convert.")] = DEFAULT_MODEL,
    cache_dir: CacheDir = None,
) -> None:
    """Fetch and convert a model, or check every byte of the one that is there."""
    from slipstream.shared.model.store import pull_model  # noqa: PLC0415 - keeps --help quick

    typer.echo(pull_model(name, resolve_cache_dir(cache_dir), report=progress))


@app.command("list")
def list_(cache_dir: CacheDir = None) -> None:
    """Print name, size and folder of every cached model."""
    from slipstream.shared.model.store import list_models  # noqa: PLC0415 - as above

    directory = resolve_cache_dir(cache_dir)
    models = list_models(directory)
    if not models:
        progress(f"no models in {directory}: fetch one with slipstream model pull {DEFAULT_MODEL}")
    for model in models:
        state = f"  (damaged: {model.damage})" if model.damage else ""
        typer.echo(f"{model.name}  {model.num_bytes / 1e6:.0f} MB  {model.directory}{state}")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A name that `slipstream model list` prints.")],
    cache_dir: CacheDir = None,
) -> None:
    """Remove every cached version of a model."""
    from slipstream.shared.model.store import remove_model  # noqa: PLC0415 - as above

    num_bytes = remove_model(name, resolve_cache_dir(cache_dir), report=progress)
    typer.echo(f"freed {num_bytes / 1e6:.0f} MB")
