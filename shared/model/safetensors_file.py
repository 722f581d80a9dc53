"""Write a safetensors file tensor by tensor."""

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# Data begins on a cache line, so that tensors of whole lines can be used from the mapping.
_ALIGNMENT = 64


def write_float32(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    load: Callable[[str], npt.NDArray[np.float32]],
) -> None:
    """Write the tensors in the order of `shapes`; only one of them is in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # values of two shapes
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * 4
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            values = load(name)
            assert values.shape == shape, f"{name} has shape {values.shape}, announced was {shape}"
            file.write(np.ascontiguousarray(values, "<f4").data)
