"""
The bytes of every token in a mapped file: text for who has no use for a tokenizer.

A tokenizer takes tens of megabytes in each process, most of it for turning text into tokens. A
worker that only does the reverse looks tokens up where all workers map them. File: a header, where
each token's bytes end (uint32), what each is (uint8), then the bytes of all tokens.
"""

import hashlib
import mmap
import struct
import subprocess
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from slipstream.shared.errors import ModelError
from slipstream.shared.model.cache_directory import Report, ensure, find_damage
from slipstream.shared.model.detokenizer import (
    ByteTextStream,
    TextStream,
    Vocabulary,
    context_of,
)

if TYPE_CHECKING:
    from slipstream.shared.model.tokenizer import Tokenizer

log = structlog.get_logger()

FILE_NAME = "tokens.bin"
_SOURCE = "tokenizer.json"

# Raised when the file changes: older ones are made again.
_VERSION = 1
_HEADER = struct.Struct("<8sII")  # magic, number of ids, whether it can be used
_MAGIC = b"SLIPVOC1"
_END_BYTES = 4
_ABSENT, _PLAIN, _SPECIAL = range(3)


class MappedVocabulary:
    """A byte-level vocabulary that only decodes. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        magic, num_ids, is_byte_level = _HEADER.unpack_from(mapped)
        if magic != _MAGIC:
            raise ModelError(f"{path} is no vocabulary")
        self.is_byte_level = bool(is_byte_level)
        first_kind = _HEADER.size + _END_BYTES * num_ids
        self._ends = mapped[_HEADER.size : first_kind].cast("I")
        self._kinds = mapped[first_kind : first_kind + num_ids]
        self._bytes = mapped[first_kind + num_ids :]

    @property
    def max_token_id(self) -> int:
        """The last id; see `Vocabulary`."""
        return len(self._kinds) - 1

    def is_visible(self, token_id: int, *, skip_special: bool) -> bool:
        """Say whether the token adds to the text; see `Vocabulary`."""
        if not 0 <= token_id < len(self._kinds):
            return False
        kind = self._kinds[token_id]
        return kind == _PLAIN or (kind == _SPECIAL and not skip_special)

    def bytes_of(self, token_id: int) -> bytes:
        """Return what a token stands for; nothing where there is none."""
        if not 0 <= token_id < len(self._ends):
            return b""
        start = self._ends[token_id - 1] if token_id else 0
        return bytes(self._bytes[start : self._ends[token_id]])

    def open_text_stream(
        self, prompt_token_ids: Sequence[int], *, skip_special: bool
    ) -> TextStream:
        """Return a stream of the text after the prompt; see `Vocabulary`."""
        context = context_of(self, prompt_token_ids, skip_special=skip_special)
        return ByteTextStream(self.bytes_of, context)


def open_vocabulary(model_dir: Path, cache_dir: Path) -> Vocabulary:
    """
    Return what the model's tokens say, having the file made first where it is missing. Blocks.

    A vocabulary that is not of bytes, or a cache that can't be written, takes the whole tokenizer.
    Raises ModelError.
    """
    directory = _directory(model_dir, cache_dir)
    if find_damage(directory, verify=False) is not None:
        _make_apart(model_dir, cache_dir)
    try:
        vocabulary = MappedVocabulary(directory / FILE_NAME)
    except OSError as error:
        log.warning("vocabulary_not_mapped", reason=str(error))
    else:
        if vocabulary.is_byte_level:
            return vocabulary
    from slipstream.shared.model.tokenizer import Tokenizer  # noqa: PLC0415 - the tokenizer is loaded only where the file is made

    return Tokenizer(model_dir)


def make_vocabulary(model_dir: Path, cache_dir: Path, *, report: Report) -> None:
    """Make the file unless it is there. Raises ModelError, OSError."""

    def build(partial: Path) -> None:
        _write(partial / FILE_NAME, model_dir)

    directory = _directory(model_dir, cache_dir)
    source = str(model_dir / _SOURCE)
    ensure(directory, "the vocabulary", source, build, report=report, verify=False)


def _make_apart(model_dir: Path, cache_dir: Path) -> None:
    """Make it in a process that ends: this one would keep the memory of the whole tokenizer."""
    command = [sys.executable, "-P", "-m", __spec__.name, str(model_dir), str(cache_dir)]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True)  # noqa: S603 - ourselves
    if done.returncode != 0:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        log.warning("vocabulary_not_made", reason=last_line)


def tokenizer_fingerprint(model_dir: Path) -> str:
    """Return the fingerprint of the tokenizer, without opening it. Raises ModelError."""
    try:
        with (model_dir / _SOURCE).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise ModelError(f"{model_dir / _SOURCE} can't be read: {error.strerror}") from error


def _directory(model_dir: Path, cache_dir: Path) -> Path:
    return cache_dir / "vocabularies" / f"{tokenizer_fingerprint(model_dir)}-v{_VERSION}"


def _write(path: Path, model_dir: Path) -> None:
    from slipstream.shared.model.tokenizer import Tokenizer  # noqa: PLC0415 - once a model

    tokenizer = Tokenizer(model_dir)
    num_ids = tokenizer.max_token_id + 1 if tokenizer.is_byte_level else 0
    ends, kinds, content = array("I"), bytearray(), bytearray()
    for token_id in range(num_ids):
        content += tokenizer.bytes_of(token_id)
        ends.append(len(content))
        kinds.append(_kind(tokenizer, token_id))
    header = _HEADER.pack(_MAGIC, num_ids, tokenizer.is_byte_level)
    path.write_bytes(header + ends.tobytes() + kinds + content)


def _kind(tokenizer: "Tokenizer", token_id: int) -> int:
    if not tokenizer.is_visible(token_id, skip_special=False):
        return _ABSENT
    return _SPECIAL if tokenizer.is_special(token_id) else _PLAIN


if __name__ == "__main__":
    make_vocabulary(Path(sys.argv[1]), Path(sys.argv[2]), report=lambda _line: None)
