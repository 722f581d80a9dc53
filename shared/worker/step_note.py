"""
Which sequences the running step has, where the KV manager finds it after the process has died.

A small file beside the arena, mapped: what is written is there however the process ends. It says
something only while a step runs, so who dies between two steps is charged to nobody.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from slipstream.shared.errors import ArenaError
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.kv.arena import MODE
from slipstream.shared.worker.report_book import Attempt

# Thousands of sequences; those for which there is no room are charged with nothing.
_SIZE = 64 * 1024
_LENGTH = struct.Struct("<I")
_PREFIX = "step."


def note_path(directory: Path, worker_id: WorkerId) -> Path:
    """Return where a worker's note lies. Raises ValueError for an id that is no file's name."""
    name = f"{_PREFIX}{worker_id}"
    if Path(name).name != name:
        raise ValueError(f"{worker_id!r} is no worker id")
    return directory / name


class StepNote:
    """The worker's side: write before a step, wipe after it."""

    def __init__(self, directory: Path, worker_id: WorkerId) -> None:
        path = note_path(directory, worker_id)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, MODE)
            try:
                # Reserved, for on a full file system a later write would be a SIGBUS.
                os.posix_fallocate(descriptor, 0, _SIZE)
                self._map = mmap.mmap(descriptor, _SIZE)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ArenaError(
                f"no room for {path} ({error.strerror}): free a page or two there"
            ) from error

    @contextlib.contextmanager
    def during(self, attempts: Iterable[Attempt]) -> Iterator[None]:
        """Have the note name these while a step runs."""
        text = _fitting("".join(f"{name} {number}\n" for name, number in attempts).encode())
        end = _LENGTH.size + len(text)
        self._map[_LENGTH.size : end] = text
        self._map[: _LENGTH.size] = _LENGTH.pack(len(text))
        try:
            yield
        finally:
            self._map[: _LENGTH.size] = _LENGTH.pack(0)

    def close(self) -> None:
        """Let go of the file; the manager removes it."""
        self._map.close()


def _fitting(text: bytes) -> bytes:
    room = _SIZE - _LENGTH.size
    return text if len(text) <= room else text[: text.rfind(b"\n", 0, room) + 1]


def take_note(path: Path) -> list[Attempt]:
    """Return what was in the step when its process died, and remove the file."""
    try:
        written = path.read_bytes()
    except OSError:
        return []
    path.unlink(missing_ok=True)
    if len(written) < _LENGTH.size:
        return []
    (length,) = _LENGTH.unpack_from(written)
    lines = written[_LENGTH.size : _LENGTH.size + length].decode(errors="replace").splitlines()
    pairs = [line.rpartition(" ") for line in lines]
    return [(RequestId(name), int(number)) for name, _, number in pairs if number.isdecimal()]


def remove_notes(directory: Path) -> None:
    """Remove what workers of a dead manager left."""
    for path in directory.glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)
