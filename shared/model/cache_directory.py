"""Model directories in the cache: made by one process, whole or not there at all."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from slipstream.shared.errors import ModelError
from slipstream.shared.model.config import MANIFEST_FILE
from slipstream.shared.model.fetch import sha256_of

# Raised when a conversion writes other files than before: older directories are made again.
FORMAT = 1
_LOCK_TIMEOUT_S = 3600.0  # another process may be fetching over a slow line
_LOCK_POLL_S = 0.1

Report = Callable[[str], None]


class FileRecord(msgspec.Struct, frozen=True):
    """What a file of a complete model must be."""

    num_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """Written last: a directory without it is not complete."""

    name: str
    source: str
    format: int
    files: dict[str, FileRecord]


def find_damage(model_dir: Path, *, verify: bool) -> str | None:
    """Say what is wrong with a cached model, or None. `verify` reads every byte."""
    try:
        content = (model_dir / MANIFEST_FILE).read_bytes()
        manifest = msgspec.json.decode(content, type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        return f"no readable {MANIFEST_FILE} ({error})"
    if manifest.format != FORMAT:
        return f"made in format {manifest.format}, now it is {FORMAT}"
    for name, record in manifest.files.items():
        path = model_dir / name
        if not path.is_file() or path.stat().st_size != record.num_bytes:
            return f"{name} is missing or has another size"
        if verify and sha256_of(path) != record.sha256:
            return f"{name} has another SHA-256"
    return None


def ensure(
    model_dir: Path,
    name: str,
    source: str,
    build: Callable[[Path], object],
    *,
    report: Report,
    verify: bool,
) -> Path:
    """
    Return `model_dir`, building it first where it is missing or damaged.

    `build` fills an empty directory. Of processes that come at the same time one builds, the
    others wait; readers see the old state or the finished one.
    """
    if find_damage(model_dir, verify=verify) is None:
        return model_dir
    with locked(model_dir, report):
        damage = find_damage(model_dir, verify=verify)
        if damage is None:
            return model_dir
        if model_dir.exists():
            report(f"{name} in the cache is damaged: {damage}; making it again")
        _build(model_dir, name, source, build)
    return model_dir


@contextlib.contextmanager
def locked(model_dir: Path, report: Report) -> Iterator[None]:
    """Hold the right to change the directory. It ends with the process, however that ends."""
    model_dir.parent.mkdir(parents=True, exist_ok=True)
    # The file stays: were it removed, two processes could hold locks on two files of its name.
    with (model_dir.parent / f".{model_dir.name}.lock").open("w") as file:
        if not _try_lock(file.fileno()):
            report(f"waiting for another process that works on {model_dir.name}")
            _wait_for_lock(file.fileno(), model_dir)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_lock(descriptor: int, model_dir: Path) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while not _try_lock(descriptor):
        if time.monotonic() > deadline:
            raise ModelError(f"another process has held {model_dir} for {_LOCK_TIMEOUT_S:g} s")
        time.sleep(_LOCK_POLL_S)


def _build(model_dir: Path, name: str, source: str, build: Callable[[Path], object]) -> None:
    """Build under another name and rename. The caller holds the lock."""
    partial = model_dir.parent / f".{model_dir.name}.partial"
    # What an interrupted process left behind.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        build(partial)
        _write_manifest(partial, name, source)
        remove(model_dir)
        partial.rename(model_dir)
        _sync(model_dir.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove(model_dir: Path) -> None:
    """Take the directory away in one step, then free it. The caller holds the lock."""
    removed = model_dir.parent / f".{model_dir.name}.removed"
    shutil.rmtree(removed, ignore_errors=True)
    if model_dir.exists():
        model_dir.rename(removed)
        shutil.rmtree(removed)


def _write_manifest(model_dir: Path, name: str, source: str) -> None:
    files = {}
    for path in sorted(model_dir.iterdir()):
        _sync(path)
        files[path.name] = FileRecord(path.stat().st_size, sha256_of(path))
    manifest = model_dir / MANIFEST_FILE
    content = msgspec.json.encode(Manifest(name, source, FORMAT, files))
    manifest.write_bytes(msgspec.json.format(content, indent=2))
    _sync(manifest)
    _sync(model_dir)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
