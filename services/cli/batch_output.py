"""
The output file of a batch: rows are appended, and on the disk before anybody is told of them.

What a crash has torn off is a last line without its end. It is taken away, and that row asked for
again, which costs nothing: its answer is kept by the server.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from slipstream.services.cli.batch_input import InputLine
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.openai.batch_lines import Row, read_row


class OutputFile:
    """
    An output file with the rows of earlier runs; a context manager.

    `found` says of each name that has a row whether that is an answer. Raises ConfigurationError
    for a file that is in use, can't be written, or is no output of these lines.
    """

    def __init__(self, path: Path, lines: Mapping[str, InputLine]) -> None:
        self._path = path
        self._lines = lines
        self.found: dict[str, bool] = {}
        self._waiting: list[Row] = []
        self._writing = asyncio.Lock()
        self._descriptor = -1
        self._failure: ConfigurationError | None = None

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            _lock(self._path, self._descriptor)
            self._read()
        except OSError as error:
            self._close()
            raise _unwritable(self._path, error) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    async def append(self, row: Row) -> None:
        """
        Return when the row is on the disk. Rows that come together are written together.

        Raises ConfigurationError, for a row whose writing failed and for each one afterwards.
        """
        self._waiting.append(row)
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            rows, self._waiting = self._waiting, []
            if not rows:
                return  # who held the lock before has written ours
            writing = asyncio.ensure_future(asyncio.to_thread(self._write, rows))
            # Even if we are cancelled: nobody may close the file meanwhile.
            await _finished(writing)

    def _write(self, rows: list[Row]) -> None:
        whole = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        size = os.fstat(self._descriptor).st_size
        try:
            while whole:
                whole = whole[os.write(self._descriptor, whole) :]
            os.fsync(self._descriptor)
        except OSError as error:
            self._failure = _unwritable(self._path, error)
            # Rows of which nobody may be told. If that fails too, the next run mends the end.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise self._failure from error

    def _read(self) -> None:
        """Take in the rows that are there, and mend the end."""
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                if line.strip():
                    self._take(number, line)
                end += len(line)
        if os.fstat(self._descriptor).st_size > end:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)

    def _take(self, number: int, line: bytes) -> None:
        row = read_row(line)
        if row is None:
            raise ConfigurationError(
                f"{self._path} line {number} is no row of a batch; name another file for the output"
            )
        name = row.custom_id if row.custom_id is not None else row.id
        wanted = self._lines.get(name)
        if wanted is not None and wanted.row_id != row.id:
            raise ConfigurationError(
                f"{self._path} line {number} answers another request than line {wanted.number} of "
                f"the input, with the same custom_id {name!r}; name another file for the output"
            )
        if wanted is not None:
            self.found[name] = row.is_answer

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


async def _finished(writing: "asyncio.Future[None]") -> None:
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        raise


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"{path} is being written by another batch; wait for it, or name another file"
        ) from error


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    reason = os.strerror(error.errno or 0)
    return ConfigurationError(f"{path} can't be written ({reason}); mend that and run it again")
