"""`slipstream model`: fetch, list and remove models of the cache."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from slipstream.services.cli.console import progress, resolve_cache_dir
from slipstream.shared.config import DEFAULT_MODEL, WeightFormat
from slipstream.shared.errors import ModelError

if TYPE_CHECKING:
    from slipstream.shared.model.store import CachedModel

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
    """
    Fetch and convert a model, or check every byte of the one that is there; print its folder.

    For example:

      slipstream model pull smollm2-135m

      slipstream model pull ./model-q4.gguf
    """
    from slipstream.shared.model.store import pull_model  # noqa: PLC0415 - keeps --help quick

    typer.echo(pull_model(name, resolve_cache_dir(cache_dir), report=progress))


@app.command()
def pack(
    name: Annotated[str, typer.Argument(help="As for --model.")] = DEFAULT_MODEL,
    weight_format: Annotated[
        WeightFormat, typer.Option("--format", help="Format of the weights.")
    ] = "int8",
    cache_dir: CacheDir = None,
) -> None:
    """
    Make the packed weights and the vocabulary that workers map; services find them ready.

    For example:

      slipstream model pack smollm2-135m --format int4
    """
    from slipstream.shared.model.config import load_config, model_fingerprint  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.model.packed_weights import open_packed  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.model.store import resolve_model  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.model.vocabulary import make_vocabulary  # noqa: PLC0415 - keeps --help quick

    directory = resolve_cache_dir(cache_dir)
    model_dir = resolve_model(name, directory, report=progress)
    make_vocabulary(model_dir, directory, report=progress)
    config, fingerprint = load_config(model_dir), model_fingerprint(model_dir)
    open_packed(model_dir, config, fingerprint, weight_format, directory, report=progress)


def pack_once(name: str, weight_format: WeightFormat, cache_dir: Path) -> None:
    """Pack in a process of its own, if need be: it loads torch, which nothing else here needs."""
    from slipstream.shared.model.config import model_fingerprint  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.model.packed_weights import is_packed  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.model.store import resolve_model  # noqa: PLC0415 - keeps --help quick

    fingerprint = model_fingerprint(resolve_model(name, cache_dir, report=progress))
    if is_packed(fingerprint, weight_format, cache_dir):
        return
    command = [sys.executable, "-P", "-m", "slipstream.services.cli.main", "model", "pack", name]
    options = ["--format", weight_format, "--cache-dir", str(cache_dir)]
    done = subprocess.run([*command, *options], check=False)  # noqa: S603 - our own command line
    if done.returncode != 0:
        raise ModelError(f"{name} could not be packed in {weight_format}; see the lines above")


@app.command("list")
def list_(
    cache_dir: CacheDir = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print them as a JSON list.")] = False,
) -> None:
    """
    Print name, size and folder of every cached model.

    For example:

      slipstream model list

      slipstream model list --json | jq -r '.[].directory'
    """
    from slipstream.shared.model.store import list_models  # noqa: PLC0415 - keeps --help quick

    directory = resolve_cache_dir(cache_dir)
    models = list_models(directory)
    if json:
        typer.echo(_as_json(models))
        return
    if not models:
        progress(f"no models in {directory}: fetch one with slipstream model pull {DEFAULT_MODEL}")
    for model in models:
        state = f"  (damaged: {model.damage})" if model.damage else ""
        typer.echo(f"{model.name}  {model.num_bytes / 1e6:.0f} MB  {model.directory}{state}")


def _as_json(models: "Sequence[CachedModel]") -> str:
    fields = [
        {
            "name": each.name,
            "num_bytes": each.num_bytes,
            "directory": str(each.directory),
            "damage": each.damage or None,
        }
        for each in models
    ]
    return msgspec.json.encode(fields).decode()


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A name that `slipstream model list` prints.")],
    cache_dir: CacheDir = None,
) -> None:
    """
    Remove every cached version of a model.

    For example:

      slipstream model remove smollm2-135m
    """
    from slipstream.shared.model.store import remove_model  # noqa: PLC0415 - keeps --help quick

    num_bytes = remove_model(name, resolve_cache_dir(cache_dir), report=progress)
    typer.echo(f"freed {num_bytes / 1e6:.0f} MB")
