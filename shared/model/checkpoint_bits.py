"""Tell whether a checkpoint in float32 holds weights of 4 bits, from a few of them; no numpy."""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from slipstream.shared.errors import ModelError
from slipstream.shared.model.safetensors_header import read_header_bytes

_GROUP = 32  # input columns with one step and one lowest value
_MAX_CODE = 15
_TOLERANCE = 1e-3  # of a step, as in `int4_grid.py`
_NUM_GROUPS = 2  # that are looked at, at each of some places of a matrix
_NUM_PLACES = 3  # from the first row to the last
_BYTES = 4  # of a float32

Group = tuple[float, ...]


def is_of_4_bits(model_dir: Path) -> bool:
    """
    Return whether samples of every matrix of the layers lie on a grid of 16 levels.

    So it is with what was decoded from a file of 4 bits: such weights are carried over as they
    were. Random ones never are: 30 of 32 values would have to be within a thousandth of a step.
    """
    found = [_is_on_grid(groups) for path in _files(model_dir) for groups in _samples(path)]
    return bool(found) and all(found)


def _files(model_dir: Path) -> list[Path]:
    return sorted(model_dir.glob("*.safetensors"))


def _samples(path: Path) -> Iterator[list[Group]]:
    """Yield groups of every matrix of a layer, none of one without. Raises ModelError."""
    text = read_header_bytes(path)
    try:
        # Any: a tensor's entry has values of three types.
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        with path.open("rb") as file:
            for name, entry in header.items():
                if ".layers." not in name or len(entry["shape"]) == 1:
                    continue
                if entry["dtype"] != "F32" or entry["shape"][-1] % (_GROUP * _NUM_GROUPS):
                    yield []
                    continue
                first = 8 + len(text) + entry["data_offsets"][0]
                yield [
                    group
                    for place in _places(entry["shape"])
                    for group in _read(file, first + place)
                ]
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ModelError(f"{path} can't be read: {error}") from error


def _places(shape: list[int]) -> Iterator[int]:
    """Yield where some rows begin, in bytes."""
    num_rows, num_columns = shape
    for i in range(_NUM_PLACES):
        yield (num_rows - 1) * i // (_NUM_PLACES - 1) * num_columns * _BYTES


def _read(file: BinaryIO, place: int) -> list[Group]:
    file.seek(place)
    size = _GROUP * _NUM_GROUPS
    values = struct.unpack(f"<{size}f", file.read(size * _BYTES))
    return [values[i : i + _GROUP] for i in range(0, size, _GROUP)]


def _is_on_grid(groups: list[Group]) -> bool:
    """Tell it of a matrix; constant groups, like those of pruned rows, say nothing."""
    telling = [group for group in groups if max(group) != min(group)]
    return bool(telling) and all(_is_group_on_grid(group) for group in telling)


def _is_group_on_grid(values: Group) -> bool:
    lowest, spread = min(values), max(values) - min(values)
    if not math.isfinite(spread):
        return False
    levels = [(value - lowest) / spread for value in values]  # 0 to 1
    return any(
        all(abs(level * num_steps - round(level * num_steps)) < _TOLERANCE for level in levels)
        for num_steps in range(1, _MAX_CODE + 1)
    )
