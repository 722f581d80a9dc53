"""Packed weights: a safetensors file whose tensors are used where it is mapped, by all."""

import contextlib
import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from slipstream.shared.errors import ModelError
from slipstream.shared.model.safetensors_header import read_header_bytes

Array = npt.NDArray[Any]  # Any: weights, scales and indices have types of their own

# Kernels read whole cache lines; so does the hardware prefetcher.
ALIGNMENT = 64
# numpy has no bf16: the bits of one are a uint16 here, of which there is nothing else.
_NAMES = {"float32": "F32", "uint16": "BF16", "int8": "I8", "int32": "I32", "uint8": "U8"}
_DTYPES = {name: np.dtype(dtype) for dtype, name in _NAMES.items()}
_PADDING = "_padding."


def write_packed(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write tensors so that each begins on a cache line of the file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}  # Any: values of two shapes
    end = 0
    for name, values in tensors.items():
        begin, end = end, end + values.nbytes
        header[name] = _entry(_NAMES[values.dtype.name], list(values.shape), begin, end)
        if padding := -end % ALIGNMENT:
            # The format allows no holes between tensors.
            header[_PADDING + name] = _entry("U8", [padding], end, end + padding)
            end += padding
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).data)
            file.write(b"\0" * (-values.nbytes % ALIGNMENT))
        _forget(file.fileno())


def _forget(descriptor: int) -> None:
    """Let the page cache go: who maps the file next reads it into pages of 2 MiB."""
    os.fsync(descriptor)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Large pages make streaming a tenth faster; without them everything works as well.
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:  # Any: as above
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


class PackedArrays(Protocol):
    """The packed weights of a model, by their names."""

    def __getitem__(self, name: str) -> Array:
        """Return a tensor. Raises KeyError."""
        ...

    def get(self, name: str) -> Array | None:
        """Return a tensor, or None where there is none of the name."""
        ...


def _object_of(text: bytes) -> dict[str, Any]:  # Any: as above
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("its header is no JSON object")
    return found


class PackedFile:
    """A mapped file; its arrays are read-only views that keep the mapping alive."""

    def __init__(self, path: Path) -> None:
        text = read_header_bytes(path)
        self._map = _map(path)
        try:
            header = _object_of(text)
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            first = 8 + len(text)
            self._arrays = {
                name: self._view(first, entry)
                for name, entry in header.items()
                if not name.startswith(_PADDING)
            }
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ModelError(f"{path} is no file of packed weights: {error}") from error

    @property
    def names(self) -> list[str]:
        """Every tensor, in the order of the file."""
        return list(self._arrays)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def get(self, name: str) -> Array | None:
        """Return a tensor, or None where there is none of the name."""
        return self._arrays.get(name)

    def _view(self, first: int, entry: Mapping[str, Any]) -> Array:  # Any: as above
        begin, end = entry["data_offsets"]
        shape = entry["shape"]
        # Before anything is made of it: a forged shape can be a list of lists, or endless.
        if not all(type(size) is int and 0 <= size <= len(self._map) for size in shape):
            raise ValueError(f"no array has the shape {str(shape)[:64]}")
        if not 0 <= begin <= end <= len(self._map) - first:
            raise ValueError(f"bytes {begin} to {end} are not in the file")
        return np.frombuffer(
            self._map, _DTYPES[entry["dtype"]], math.prod(shape), first + begin
        ).reshape(shape)
