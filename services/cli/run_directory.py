"""The directory of one running stack in shared memory, removed at its end or by the next start.

A lock on a file inside it is held as long as its supervisor lives, however that ends. A directory
whose lock is free therefore belongs to nobody.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.shared.errors import ConfigurationError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - memory is the point
NATS_FOLDER = "nats"
_LOCK_FILE = "lock"
_NUM_TRIES = 100


@dataclass(frozen=True)
class RunDirectory:
    """Where a stack keeps its arena, its status files and its server's store."""

    path: Path

    @property
    def arena_dir(self) -> Path:
        """The KV manager's arena and socket."""
        return self.path / "arena"

    @property
    def log_file(self) -> Path:
        """What the children logged, where it is not shown."""
        return self.path / "log.jsonl"

    @property
    def nats_dir(self) -> Path:
        """Settings and store of the embedded server."""
        return self.path / NATS_FOLDER

    def status_file(self, name: str) -> Path:
        """Return where a child writes its heartbeat."""
        return self.path / "status" / f"{name}.json"


def default_base() -> Path:
    """Return the folder for this user's stacks: in shared memory where that can be written."""
    root = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return root / f"slipstream-{os.getuid()}"


@contextlib.contextmanager
def open_run_directory(base: Path | None = None) -> Iterator[RunDirectory]:
    """Remove what dead supervisors left, then hold a fresh directory until the end."""
    base = base or default_base()
    sweep(base)
    path, lock = _create(base)
    run = RunDirectory(path)
    try:
        for directory in (run.arena_dir, run.nats_dir, run.path / "status"):
            directory.mkdir(mode=0o700)
        yield run
    finally:
        remove(path)
        os.close(lock)


def sweep(base: Path) -> list[Path]:
    """Remove the directories whose lock is free; return them."""
    if not base.is_dir():
        return []
    _check_owner(base)
    removed = []
    for path in sorted(base.iterdir()):
        lock = _try_lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
            removed.append(path)
    return removed


def remove(path: Path) -> None:
    """Remove a directory, and the user's folder around it where nothing else is in it."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _create(base: Path) -> tuple[Path, int]:
    """Return a new directory and the descriptor that holds its lock."""
    for _ in range(_NUM_TRIES):
        path = base / f"{os.getpid()}-{secrets.token_hex(3)}"
        try:
            base.mkdir(mode=0o700, exist_ok=True)
            _check_owner(base)
            path.mkdir(mode=0o700)
        except FileNotFoundError:
            # Another supervisor ended and took the empty folder away between the two calls.
            continue
        lock = _try_lock(path)
        # A sweep may have come between making the directory and locking it.
        if lock is not None and _is_still_there(path, lock):
            return path, lock
        if lock is not None:
            os.close(lock)
    raise ConfigurationError(f"no directory could be made in {base}: is it being removed?")


def _try_lock(path: Path) -> int | None:
    """Return the descriptor of the directory's lock, or None when another process holds it."""
    try:
        lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _is_still_there(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat((path / _LOCK_FILE).stat(), os.fstat(lock))
    except OSError:
        return False


def _check_owner(base: Path) -> None:
    """Refuse a folder that somebody else made: shared memory is open to every user."""
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigurationError(f"{base} belongs to somebody else; remove it and start again")
    base.chmod(0o700)
