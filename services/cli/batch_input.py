"""The lines of a batch's input file: found in one pass, read again when their turn comes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.openai.batch_lines import custom_id_of, digest_of


@dataclass(frozen=True, slots=True)
class InputLine:
    """Where a line is, and who it is."""

    number: int  # in the file, from 1
    offset: int
    num_bytes: int
    custom_id: str | None  # None where the line says none that can be read
    row_id: str  # of its row in the output: the same in every run

    @property
    def name(self) -> str:
        """What its row is found by."""
        return self.custom_id if self.custom_id is not None else self.row_id


class InputFile:
    """
    An input file, of which only places and names are held.

    Raises ConfigurationError for a file that can't be read, is empty, or names two lines alike.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{path} is no file, which a batch has to read twice")
        self._path = path
        self.lines: list[InputLine] = []
        numbers: dict[str, int] = {}
        for line in self._scan():
            first = numbers.setdefault(line.name, line.number)
            if first != line.number and line.custom_id is not None:
                raise ConfigurationError(
                    f"{path} line {line.number}: custom_id {line.custom_id!r} is that of line "
                    f"{first} too; give each line its own"
                )
            self.lines.append(line)
        if not self.lines:
            raise ConfigurationError(f"{path} holds no requests; write one JSON object a line")

    def read(self, line: InputLine) -> bytes:
        """Return a line's bytes. Raises ConfigurationError where the file has changed."""
        try:
            with self._path.open("rb") as file:
                file.seek(line.offset)
                found = file.read(line.num_bytes)
        except OSError as error:
            raise _unreadable(self._path, error) from error
        if _row_id(found, line.number, line.custom_id) != line.row_id:
            raise ConfigurationError(f"{self._path} line {line.number} has changed meanwhile")
        return found

    def _scan(self) -> Iterator[InputLine]:
        offset = 0
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        custom_id = custom_id_of(line)
                        row_id = _row_id(line, number, custom_id)
                        yield InputLine(number, offset, len(line), custom_id, row_id)
                    offset += len(line)
        except OSError as error:
            raise _unreadable(self._path, error) from error


def _row_id(line: bytes, number: int, custom_id: str | None) -> str:
    # Without a name two lines may be alike; their places tell them apart.
    return f"batch_req_{digest_of(line, '' if custom_id is not None else str(number))}"


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"{path} can't be read ({os.strerror(error.errno or 0)})")
