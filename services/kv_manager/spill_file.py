"""The file of the second tier: evicted blocks in slots, each with a checksum. Calls block."""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from slipstream.shared.errors import ConfigurationError

_NAME = "spill"
_MODE = 0o600


class SpillFile:
    """
    Slots of one block each; the file is as large as what was written, up to its limit.

    Its content ends with the process: it is removed as soon as it is open.
    """

    def __init__(self, directory: Path, block_bytes: int, max_bytes: int) -> None:
        """Raises ConfigurationError for a directory that can't be written, or too few bytes."""
        self._block_bytes = block_bytes
        self.num_slots = max_bytes // block_bytes
        if self.num_slots < 1:
            raise ConfigurationError(
                f"--spill-bytes of {max_bytes} holds no block of {block_bytes} bytes"
            )
        path = directory / f"{_NAME}.{os.getpid()}"
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE)
            path.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"--spill-dir {directory} can't be written ({error.strerror})"
            ) from error
        self._checksums: dict[int, int] = {}

    def write(self, slots: Sequence[int], contents: Sequence[bytes]) -> None:
        """Fill slots. Raises OSError, as on a full disk: then none of them may be read."""
        for slot, content in zip(slots, contents, strict=True):
            self._checksums.pop(slot, None)
            if os.pwrite(self._descriptor, content, slot * self._block_bytes) != len(content):
                raise OSError(f"slot {slot} was written in part")
            self._checksums[slot] = zlib.crc32(content)

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> int:
        """Fill blocks from slots; return how many are sound before the first that isn't."""
        for number, (slot, place) in enumerate(zip(slots, into, strict=True)):
            num_bytes = os.preadv(self._descriptor, [place], slot * self._block_bytes)
            is_sound = num_bytes == self._block_bytes
            if not is_sound or zlib.crc32(place) != self._checksums.get(slot):
                return number
        return len(slots)

    def close(self) -> None:
        """Give the disk its space back."""
        os.close(self._descriptor)
