"""Tell whether a checkpoint in float32 holds weights of 4 bits, from a few of them; no numpy."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipstream.shared.errors import ModelError
from slipstream.shared.model.safetensors_file import read_header_bytes

_GROUP = 32  # input columns with one step and one lowest value
_MAX_CODE = 15
_TOLERANCE = 1e-3  # of a step, as in `int4_grid.py`
_NUM_GROUPS = 2  # that are looked at, of each matrix
_BYTES = 4  # of a float32


def is_of_4_bits(model_dir: Path) -> bool:
    """
    Return whether the beginning of every matrix of the layers lies on a grid of 16 levels.

    So it is with what was decoded from a file of 4 bits: such weights are carried over as they
    were. Random ones never are: 30 of 32 values would have to be within a thousandth of a step.
    """
    found = [_is_on_grid(values) for path in _files(model_dir) for values in _beginnings(path)]
    return bool(found) and all(found)


def _files(model_dir: Path) -> list[Path]:
    return sorted(model_dir.glob("*.safetensors"))


def _beginnings(path: Path) -> Iterator[tuple[float, ...] | None]:
    """Yield groups of every matrix of a layer, None of one without. Raises ModelError."""
    text = read_header_bytes(path)
    try:
        # Any: a tensor's entry has values of three types.
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        with path.open("rb") as file:
            for name, entry in header.items():
                if ".layers." not in name or len(entry["shape"]) == 1:
                    continue
                if entry["dtype"] != "F32" or entry["shape"][-1] % _GROUP:
                    yield None
                    continue
                file.seek(8 + len(text) + entry["data_offsets"][0])
                size = _GROUP * _NUM_GROUPS
                values = struct.unpack(f"<{size}f", file.read(size * _BYTES))
                yield from (values[i : i + _GROUP] for i in range(0, size, _GROUP))
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ModelError(f"{path} can't be read: {error}") from error


def _is_on_grid(values: tuple[float, ...] | None) -> bool:
    if values is None:
        return False
    lowest, spread = min(values), max(values) - min(values)
    if spread == 0.0:
        return True
    levels = [(value - lowest) / spread for value in values]  # 0 to 1
    return any(
        all(abs(level * num_steps - round(level * num_steps)) < _TOLERANCE for level in levels)
        for num_steps in range(1, _MAX_CODE + 1)
    )
