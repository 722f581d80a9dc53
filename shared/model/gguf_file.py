"""Read a GGUF file; every length is checked against the file before it is believed."""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from slipstream.shared.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_NUM_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
# GGUF value type -> format of one value, little endian.
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies and how it is stored; `shape` has the outermost dimension first."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GgufFile:
    """A checked header over the mapped bytes of the file."""

    path: Path
    metadata: dict[str, Any]  # whatever types the file holds; readers check what they use
    tensors: dict[str, GgufTensor]
    data: memoryview

    def read_float32(self, tensor: GgufTensor) -> npt.NDArray[np.float32]:
        """Return the tensor dequantized to float32 in its own shape."""
        raw = np.frombuffer(self.data, np.uint8, tensor.num_bytes, tensor.offset)
        rows = raw.reshape(*tensor.shape[:-1], -1)
        try:
            # What is not finite is the caller's to judge; numpy's warnings would only add noise.
            with np.errstate(all="ignore"):
                values = dequantize(rows, tensor.kind)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: {tensor.name} is stored as {tensor.kind.name}, which "
                "can't be read here"
            ) from error
        return np.asarray(values, np.float32).reshape(tensor.shape)


class _Cursor:
    """A position in the header that never passes the end of the file."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self._data = data
        self._path = path
        self.position = 0

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self._path}: {what} at byte {self.position}: not a whole GGUF file")

    def take(self, num_bytes: int) -> memoryview:
        if num_bytes > len(self._data) - self.position:
            raise self.fail(f"{num_bytes} bytes are missing")
        start = self.position
        self.position += num_bytes
        return self._data[start : self.position]

    def scalars(self, code: str, count: int = 1) -> tuple[Any, ...]:
        # The length is compared before the format is built: a forged count allocates nothing.
        return struct.unpack(f"<{count}{code}", self.take(struct.calcsize(f"<{code}") * count))

    def integer(self, code: str) -> int:
        return int(self.scalars(code)[0])

    def text(self) -> str:
        try:
            return str(self.take(self.integer("Q")), "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail("broken text") from error

    def value(self) -> Any:  # any GGUF type
        kind = self.integer("I")
        if kind == _ARRAY:
            return self._array()
        return self._plain(kind)

    def _plain(self, kind: int) -> Any:  # any GGUF type but an array
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.scalars(_SCALARS[kind])[0]
        raise self.fail(f"value type {kind} is unknown")

    def _array(self) -> list[Any]:
        kind, count = self.integer("I"), self.integer("Q")
        if kind == _STRING:
            # Each string takes 8 bytes at least; `text` raises long before a forged count is done.
            return [self.text() for _ in range(count)]
        if kind in _SCALARS:
            return list(self.scalars(_SCALARS[kind], count))
        raise self.fail(f"arrays of type {kind} are unknown")


def open_gguf(path: Path) -> GgufFile:
    """Map the file and read its header. Raises ModelError where the file is cut or malformed."""
    data = _map(path)
    cursor = _Cursor(data, path)
    if bytes(data[:4]) != _MAGIC:
        raise ModelError(f"{path} is no GGUF file: it does not begin with {_MAGIC.decode()}")
    cursor.take(4)
    version = cursor.integer("I")
    if version not in _VERSIONS:
        raise ModelError(f"{path}: GGUF version {version} can't be read, only 2 and 3")
    num_tensors, num_values = cursor.integer("Q"), cursor.integer("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.text()
        if key in metadata:
            raise cursor.fail(f"{key[:64]!r} occurs twice")
        metadata[key] = cursor.value()
    entries = [_read_tensor_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise ModelError(f"{path}: general.alignment {alignment!r} is no power of two")
    for entry in entries:
        if entry.offset % alignment:
            raise ModelError(f"{path}: {entry.name} is not aligned to {alignment} bytes")
    # Else a small file of tensors that share their bytes would become a model of any size.
    if sum(entry.num_bytes for entry in entries) > len(data):
        raise ModelError(f"{path}: its tensors take more bytes than the file has: it is cut short")
    start = -(-cursor.position // alignment) * alignment
    tensors = {entry.name: _place(entry, start, len(data), path) for entry in entries}
    if len(tensors) != len(entries):
        raise ModelError(f"{path}: a tensor name occurs twice")
    return GgufFile(path, metadata, tensors, data)


def _map(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            # The mapping lives as long as the view: arrays made from it keep it alive.
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can't be read: {error}") from error


def _read_tensor_entry(cursor: _Cursor) -> GgufTensor:
    name = cursor.text()
    num_dimensions = cursor.integer("I")
    if not 1 <= num_dimensions <= _MAX_NUM_DIMENSIONS:
        raise cursor.fail(f"{name} has {num_dimensions} dimensions")
    shape = tuple(int(size) for size in reversed(cursor.scalars("Q", num_dimensions)))
    kind_number, offset = cursor.integer("I"), cursor.integer("Q")
    try:
        kind = GGMLQuantizationType(kind_number)
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise cursor.fail(f"{name} has the unknown storage type {kind_number}") from error
    if shape[-1] % block_size or not math.prod(shape):
        raise cursor.fail(f"{name} of shape {shape} does not fill blocks of {block_size}")
    return GgufTensor(name, shape, kind, offset, math.prod(shape) // block_size * block_bytes)


def _place(tensor: GgufTensor, start: int, num_file_bytes: int, path: Path) -> GgufTensor:
    offset = start + tensor.offset
    if offset + tensor.num_bytes > num_file_bytes:
        raise ModelError(
            f"{path}: {tensor.name} ends at byte {offset + tensor.num_bytes}, the file at "
            f"{num_file_bytes}: it is cut short"
        )
    return GgufTensor(tensor.name, tensor.shape, tensor.kind, offset, tensor.num_bytes)
