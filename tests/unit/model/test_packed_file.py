"""Packed weights are read where they lie, and a damaged file is refused."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from slipstream.shared.errors import ModelError
from slipstream.shared.model.packed_file import ALIGNMENT, PackedFile, write_packed

ARRAYS = {
    "codes": np.arange(-5, 5, dtype=np.int8),
    "halves": np.array([0x3F80, 0xC000, 0x0001], np.uint16),
    "scales": np.linspace(0, 1, 7, dtype=np.float32),
    "columns": np.arange(33, dtype=np.int32).reshape(3, 11),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_packed(tmp_path / "weights", ARRAYS, {"format": "int8"})
    return tmp_path / "weights"


def test_what_was_written_is_read_with_its_types_and_shapes(path: Path) -> None:
    packed = PackedFile(path)

    assert {"format": "int8"} == packed.metadata
    for name, values in ARRAYS.items():
        assert packed[name].dtype == values.dtype
        np.testing.assert_array_equal(packed[name], values)
    assert packed.get("nothing") is None


def test_every_array_begins_on_a_cache_line(path: Path) -> None:
    packed = PackedFile(path)

    assert all(packed[name].ctypes.data % ALIGNMENT == 0 for name in ARRAYS)


def test_the_file_is_an_ordinary_safetensors_file(path: Path) -> None:
    read = load_file(path)

    assert ARRAYS.keys() <= read.keys()
    np.testing.assert_array_equal(read["codes"], ARRAYS["codes"])
    assert torch.bfloat16 == read["halves"].dtype
    assert [1.0, -2.0, 2.0**-133] == read["halves"].tolist()


def test_arrays_cannot_be_written(path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        PackedFile(path)["codes"][0] = 1


@pytest.mark.parametrize("num_bytes", [0, 7, 40, 200])
def test_a_file_that_is_cut_short_is_refused(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])

    with pytest.raises(ModelError):
        PackedFile(path)


def with_header(path: Path, text: bytes) -> Path:
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    return path


def entry(shape: str, begin: int = 0, end: int = 4) -> bytes:
    text = f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": [{begin}, {end}]}}}}'
    return text.encode()


@pytest.mark.parametrize(
    "header",
    [
        b"1",
        b"null",
        b"[]",
        b"[" * 50_000,
        entry(f"[{2**70}]"),
        entry("[-1]"),
        entry("[9000000000, [0]]"),  # a list so many times is gigabytes
        entry("[1]", begin=-8),
        entry("[1]", end=2**70),
        entry("[1.0]"),
        entry("[true]"),
    ],
)
def test_a_forged_header_is_refused(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(ModelError, match="no file of packed weights"):
        PackedFile(with_header(tmp_path / "forged", header))
