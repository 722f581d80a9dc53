"""
Time the matrices of the default model in each format, for few rows and for many.

    python kernels/bench/linear.py --format int8 --rows 1,8,32,512

Matrices take turns: as many of one shape as a step reads of weights in all, so that none is found
in a cache that a step would not find it in. A sample of many rows takes fewer of them.
"""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.kernels.bench.harness import (
    Bench,
    SmolLM2,
    Work,
    numbers,
    parser,
    random_floats,
)
from slipstream.kernels.cpu.matrix import NUM_OUTLIERS, TILE, Floats, Matrix
from slipstream.kernels.cpu.operations import Quantized

MODEL = SmolLM2()
FORMATS = ["float32", "bf16", "int8", "int4"]
_INTEGERS = ("int8", "int4")
_NUM_HEADS = MODEL.num_heads + 2 * MODEL.num_kv_heads
_WEIGHTS = 135_000_000  # of a step
_MAX_OPERATIONS = 4 * 10**9  # of a sample
_HADAMARD = 128
# Outputs and inputs of each; which inputs keep outliers, and which are rotated, as when packed.
SHAPES = {
    "qkv": (_NUM_HEADS * MODEL.head_dim, MODEL.hidden),
    "output": (MODEL.hidden, MODEL.hidden),
    "gate_up": (2 * MODEL.intermediate, MODEL.hidden),
    "down": (MODEL.hidden, MODEL.intermediate),
    "head": (MODEL.vocab, MODEL.hidden),
}


def matrices(name: str, weight_format: str, count: int) -> list[Matrix]:
    """Return random matrices of a shape, each in memory of its own."""
    num_outputs, num_inputs = SHAPES[name]
    if weight_format in ("float32", "bf16"):
        tiles = random_floats(num_outputs // TILE, num_inputs, TILE)
        # The upper halves of bits: truncated, which takes as long as rounded.
        kept = tiles.view(np.uint16)[..., 1::2] if weight_format == "bf16" else tiles
        return [Matrix(copy) for copy in _copies(kept, count)]
    if weight_format == "int4" and name != "head":
        return _int4_matrices(name, count)
    codes = np.random.default_rng(0).integers(-127, 128, (num_outputs, num_inputs), np.int8)
    tiles_of_codes = codes.reshape(-1, TILE, num_inputs // 4, 4).transpose(0, 2, 1, 3)
    wide = codes.astype(np.int32)
    others = {
        "scales": np.full(num_outputs, 1e-3, np.float32),
        "sums": wide.sum(axis=1, dtype=np.int32),
    }
    if name != "down":
        others["outlier_sums"] = wide[:, :NUM_OUTLIERS].sum(axis=1, dtype=np.int32)
        others["columns"] = np.arange(num_inputs, dtype=np.int32)
    hadamard = _HADAMARD if name == "down" else 0
    return [
        Matrix(copy, **{k: v.copy() for k, v in others.items()}, hadamard=hadamard)
        for copy in _copies(tiles_of_codes, count)
    ]


def _copies(weights: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return copies in one piece of memory: large pages, as a packed file has."""
    return np.repeat(weights[None], count, axis=0)


def _int4_matrices(name: str, count: int) -> list[Matrix]:
    """Return random codes as a checkpoint of 4 bits has them: all inputs of down have 16 bits."""
    num_outputs, num_inputs = SHAPES[name]
    num_quads = num_inputs // 4
    size = (num_outputs // TILE, num_inputs // 32, 5, 64)
    outliers = np.arange(num_quads) if name == "down" else np.arange(16) * (num_quads // 16)
    codes = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    scales = np.full(num_outputs, 1e-6, np.float32)
    return [
        Matrix(copy, scales=scales, outliers=outliers.astype(np.int32))
        for copy in _copies(codes, count)
    ]


def bytes_of(matrix: Matrix) -> int:
    """Return what a run reads of a matrix; the order of its inputs is read when they are made."""
    parts = (matrix.weights, matrix.scales, matrix.sums, matrix.outlier_sums)
    return sum(part.nbytes for part in parts if part is not None)


def work_of(bench: Bench, name: str, weight_format: str, num_rows: int, of: list[Matrix]) -> Work:
    """Return one product over all matrices in turn."""
    num_outputs, num_inputs = SHAPES[name]
    operations = bench.operations
    floats = random_floats(num_rows, num_inputs)
    x: Floats | Quantized = floats
    num_input_bytes = floats.nbytes
    if weight_format in _INTEGERS:
        x = operations.quantize(floats, of[0])
        num_input_bytes = num_rows * (num_inputs + of[0].num_outliers + 4)
    out = np.empty((num_rows, num_outputs), np.float32)
    num_operations = 2 * num_rows * num_outputs * num_inputs
    taken = of[: max(1, _MAX_OPERATIONS // num_operations)]

    def run() -> float:
        operations.num_times = len(taken)
        operations.linear(x, taken, num_outputs, out)
        return operations.seconds

    return Work(
        name=f"{name} {weight_format}, {num_rows} row{'s' if num_rows > 1 else ''}",
        num_bytes=bytes_of(of[0]) + num_input_bytes + out.nbytes,
        num_operations=num_operations,
        arithmetic="int8" if weight_format in _INTEGERS else "float32",
        run=run,
        touched_bytes=len(taken) * bytes_of(of[0]) + num_input_bytes + out.nbytes,
    )


def main() -> None:
    """Measure shape by shape, and print a line for each number of rows."""
    options = parser(__doc__)
    options.add_argument("--format", choices=FORMATS, help="default: all of them")
    options.add_argument("--rows", type=numbers, default=numbers("1,2,4,8,16,32,128,512"))
    options.add_argument("--matrix", choices=list(SHAPES), help="default: all of them")
    chosen = options.parse_args()
    bench = Bench(chosen)
    for weight_format in [chosen.format] if chosen.format else FORMATS:
        for name in [chosen.matrix] if chosen.matrix else SHAPES:
            count = -(-_WEIGHTS // (SHAPES[name][0] * SHAPES[name][1]))
            of = matrices(name, weight_format, count)
            work = partial(work_of, bench, name, weight_format, of=of)
            bench.measure([work(num_rows) for num_rows in chosen.rows])
    bench.close()


if __name__ == "__main__":
    main()
