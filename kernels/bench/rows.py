"""
Time what happens to rows between the matrices: norm, quantization, gate, residual, heads.

    python kernels/bench/rows.py --rows 1,8,32,512

Rows are read again and again, so that they lie in a cache near by, as after the operation before in
a step; the reader beside them reads 256 KiB at least. One row is one thread's. Every run of several
threads ends with their meeting: the first line is what that costs alone, and the last what it costs
to wake them, once a dispatch.
"""

import time
from collections.abc import Callable

import numpy as np

from slipstream.kernels.bench.harness import (
    Bench,
    SmolLM2,
    Work,
    numbers,
    parser,
    random_floats,
    say,
)
from slipstream.kernels.bench.linear import matrices
from slipstream.kernels.cpu.operations import Operations, Quantized, Queries
from slipstream.kernels.cpu.paged_batch import BLOCK_SIZE, HeadSizes, PagedBatch, PagedRows

MODEL = SmolLM2()
_NUM_RUNS = 200
# Operations an element, multiply-adds counting as two. The rotation of 2^n adds n times.
_NORM, _QUANTIZE, _ROTATE, _GATE, _ADD = 4, 4, 7, 32, 1
_FLOAT_HEADS, _BF16_HEADS, _INT8_HEADS = 3, 3 + 5, 3 + 6 + _QUANTIZE

Call = Callable[[Operations], object]


class RowWorks:
    """The operations on so many rows."""

    def __init__(self, operations: Operations, num_rows: int) -> None:
        self._operations = operations
        self._num_rows = num_rows

    def all(self) -> list[Work]:
        """Return them in the order in which a step comes by."""
        return [
            self._embed(),
            self._norm(),
            self._quantize("qkv", "quantize", _QUANTIZE),
            self._heads("float32", _FLOAT_HEADS),
            self._heads("bf16", _BF16_HEADS),
            self._heads("int8", _INT8_HEADS),
            self._gate(),
            self._quantize("down", "rotate and quantize", _ROTATE + _QUANTIZE),
            self._add(),
        ]

    def nothing(self) -> Work:
        """Return a run over no rows."""
        x = random_floats(0, MODEL.hidden)
        return self._work("nothing: threads meet", 0, 0, lambda each: each.add(x, x))

    def _work(self, name: str, num_bytes: int, num_operations: int, call: Call) -> Work:
        def run() -> float:
            self._operations.num_times = _NUM_RUNS
            call(self._operations)
            return self._operations.seconds

        return Work(name, num_bytes, num_operations, "float32", run, num_bytes)

    def _named(self, name: str) -> str:
        return f"{name}, {self._num_rows} row{'s' if self._num_rows > 1 else ''}"

    def _embed(self) -> Work:
        (head,) = matrices("head", "int8", 1)
        token_ids = np.random.default_rng(0).integers(0, MODEL.vocab, self._num_rows, np.int32)
        out = np.empty((self._num_rows, MODEL.hidden), np.float32)
        num_bytes = self._num_rows * MODEL.hidden + out.nbytes
        name = self._named("embed from the int8 head")
        return self._work(name, num_bytes, out.size, lambda each: each.embed(token_ids, head, out))

    def _norm(self) -> Work:
        x, weight = random_floats(self._num_rows, MODEL.hidden), random_floats(MODEL.hidden)
        out = np.empty_like(x)
        num_bytes = 2 * x.nbytes + weight.nbytes
        return self._work(
            *(self._named("rms_norm"), num_bytes, _NORM * x.size),
            lambda each: each.rms_norm(x, weight, 1e-5, out),
        )

    def _quantize(self, matrix_name: str, name: str, operations_each: int) -> Work:
        (matrix,) = matrices(matrix_name, "int8", 1)
        x = random_floats(self._num_rows, matrix.num_inputs)
        out = Quantized.empty(len(x), matrix)
        num_bytes = x.nbytes + x.size + out.scales.nbytes
        return self._work(
            *(self._named(name), num_bytes, operations_each * x.size),
            lambda each: each.quantize(x, matrix, out),
        )

    def _heads(self, kv_format: str, operations_each: int) -> Work:
        heads = (MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim)
        sizes = HeadSizes(1, *heads, kv_format)
        table = range(-(-self._num_rows // BLOCK_SIZE))
        kv = np.zeros(sizes.block_bytes * len(table), np.uint8)
        tables = random_floats(2, self._num_rows, MODEL.head_dim // 2)
        batch = PagedBatch(sizes, kv, [PagedRows(self._num_rows, 0, table)], tables[0], tables[1])
        qkv = random_floats(self._num_rows, sizes.num_all_heads, MODEL.head_dim)
        out = Queries.empty(batch)
        queries = out.floats.nbytes + out.planes.nbytes + out.scales.nbytes
        written = queries + self._num_rows * 2 * sizes.num_kv_heads * sizes.head_bytes
        return self._work(
            self._named(f"rotary and KV {kv_format}"),
            qkv.nbytes + tables.nbytes + written,
            operations_each * qkv.size,
            lambda each: each.finish_heads(batch, 0, qkv, out),
        )

    def _gate(self) -> Work:
        x = random_floats(self._num_rows, 2 * MODEL.intermediate)
        out = np.empty((self._num_rows, MODEL.intermediate), np.float32)
        return self._work(
            *(self._named("silu and multiply"), x.nbytes + out.nbytes, _GATE * out.size),
            lambda each: each.silu_and_multiply(x, out),
        )

    def _add(self) -> Work:
        x = random_floats(self._num_rows, MODEL.hidden)
        out = np.zeros_like(x)
        return self._work(
            *(self._named("add to the residual"), 3 * x.nbytes, _ADD * x.size),
            lambda each: each.add(x, out),
        )


def wake_microseconds(operations: Operations, num_calls: int = 500) -> float:
    """Return what a call costs that does nothing."""
    x = random_floats(0, MODEL.hidden)
    operations.num_times = 1
    seconds = []
    for _ in range(num_calls):
        started = time.perf_counter()
        operations.add(x, x)
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds)) * 1e6


def main() -> None:
    """Measure all operations on so many rows together, and print a line for each."""
    options = parser(__doc__)
    options.add_argument("--rows", type=numbers, default=numbers("1,8,32,512"))
    chosen = options.parse_args()
    bench = Bench(chosen)
    alone = Operations(bench.operations.kernels, 1)
    bench.measure([RowWorks(bench.operations, 0).nothing()])
    for num_rows in chosen.rows:
        bench.measure(RowWorks(alone if num_rows == 1 else bench.operations, num_rows).all())
    waking = wake_microseconds(bench.operations) - wake_microseconds(alone)
    say(f"waking {chosen.threads} threads: {waking:.1f} microseconds a dispatch")
    alone.close()
    bench.close()


if __name__ == "__main__":
    main()
