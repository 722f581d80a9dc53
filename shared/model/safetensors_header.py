"""Read the header of a safetensors file: what is in it, without any of it, and without numpy."""

from pathlib import Path

from slipstream.shared.errors import ModelError

_MAX_NUM_HEADER_BYTES = 100_000_000  # the limit of the format


def read_header_bytes(path: Path) -> bytes:
    """Return the raw header. Raises ModelError where the file is cut short or no safetensors."""
    try:
        num_file_bytes = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            num_bytes = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or num_bytes > min(num_file_bytes - 8, _MAX_NUM_HEADER_BYTES):  # noqa: PLR2004 - the length field
                raise ModelError(f"{path} is no whole safetensors file")
            return file.read(num_bytes)
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error}") from error
