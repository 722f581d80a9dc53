"""The benchmark of the matrices runs what it says, in every format."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from slipstream.kernels.bench.linear import FORMATS, matrices, work_of
from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.operations import Operations

pytestmark = pytest.mark.skipif(
    not loader.available_levels(), reason="the native kernels were not built"
)


@pytest.mark.parametrize("matrix", ["output", "down"])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_product_is_timed_and_its_bytes_are_counted(weight_format: str, matrix: str) -> None:
    operations = Operations(loader.load(), num_threads=1)
    bench = cast("Any", SimpleNamespace(operations=operations))
    of = matrices(matrix, weight_format, 2)

    work = work_of(bench, matrix, weight_format, 3, of)

    assert work.run() > 0
    num_weights = work.num_operations // (2 * 3)
    bytes_each = {"float32": 4, "bf16": 2, "int8": 1, "int4": 0.625}[weight_format]
    assert work.num_bytes == pytest.approx(num_weights * bytes_each, rel=0.2)
    assert work.arithmetic == ("int8" if weight_format.startswith("int") else "float32")
    operations.close()
