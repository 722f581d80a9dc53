"""
Time attention over a paged cache with the heads of the default model, in each of its formats.

    python kernels/bench/attention.py --format int8 --json attention.json

The layers of the model take turns, as in a step: what a run reads was last read 30 layers before.
Operations are those of the textbook. In int8 the kernel makes twice as many products: queries and
softmax weights have 16 bits, in two planes.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from slipstream.kernels.bench.harness import Bench, SmolLM2, Work, parser, random_floats
from slipstream.kernels.cpu.paged_batch import BLOCK_SIZE, HeadSizes, PagedBatch, PagedRows

MODEL = SmolLM2()
FORMATS = ["float32", "bf16", "int8"]
_CHUNK = 512  # rows of a step that fills the cache


@dataclass(frozen=True, slots=True)
class Shape:
    """A step: so many sequences, each with rows behind `num_computed` positions."""

    name: str
    batch: int
    num_rows: int
    num_computed: int

    @property
    def context(self) -> int:
        """Positions of each sequence after the step."""
        return self.num_computed + self.num_rows


SHAPES = (
    *(Shape(f"decode, context {context}", 1, 1, context - 1) for context in (128, 540, 4096)),
    *(Shape(f"decode of {batch}, context 540", batch, 1, 539) for batch in (8, 32)),
    Shape("verify 8 rows, context 540", 1, 8, 532),
    Shape("prefill of 512 rows", 1, 512, 0),
)


def sizes_of(kv_format: str) -> HeadSizes:
    """Return the heads of the model over such a cache."""
    heads = (MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim)
    return HeadSizes(MODEL.num_layers, *heads, kv_format)


def batches_of(shape: Shape, sizes: HeadSizes) -> tuple[list[PagedBatch], PagedBatch]:
    """Return the steps that fill a fresh cache, and the one that is timed."""
    blocks_each = -(-shape.context // BLOCK_SIZE)
    kv = np.zeros(sizes.block_bytes * blocks_each * shape.batch, np.uint8)
    scattered = np.random.default_rng(0).permutation(blocks_each * shape.batch)
    tables = [part.tolist() for part in np.split(scattered, shape.batch)]
    angles = random_floats(shape.context, sizes.head_dim // 2)
    cosines, sines = np.cos(angles), np.sin(angles)

    def batch(first: int, end: int, *of: list[int]) -> PagedBatch:
        sequences = [PagedRows(end - first, first, table) for table in of]
        return PagedBatch(sizes, kv, sequences, cosines, sines)

    starts = range(0, shape.context, _CHUNK)
    filling = [
        batch(first, min(first + _CHUNK, shape.context), table)
        for table in tables
        for first in starts
    ]
    return filling, batch(shape.num_computed, shape.context, *tables)


def work_of(bench: Bench, shape: Shape, kv_format: str) -> Work:
    """Return attention of a step over a filled cache."""
    sizes, operations = sizes_of(kv_format), bench.operations
    filling, batch = batches_of(shape, sizes)
    operations.num_times = sizes.num_layers
    row = random_floats(_CHUNK, sizes.num_all_heads, sizes.head_dim)
    for step in filling:
        operations.finish_heads(step, 0, row[: step.num_rows])
    queries = operations.finish_heads(batch, 0, row[: batch.num_rows])
    out = np.empty((batch.num_rows, sizes.num_heads, sizes.head_dim), np.float32)
    num_pairs = shape.batch * sum(range(shape.num_computed + 1, shape.context + 1))
    head_bytes = 2 * sizes.num_kv_heads * sizes.head_bytes
    kv_bytes = shape.batch * shape.context * head_bytes
    query_bytes = queries.floats.nbytes + queries.planes.nbytes + queries.scales.nbytes

    def run() -> float:
        operations.num_times = sizes.num_layers
        operations.attend(batch, 0, queries, out)
        return operations.seconds

    return Work(
        name=f"{shape.name}, KV {kv_format}",
        num_bytes=kv_bytes + query_bytes + out.nbytes,
        num_operations=4 * num_pairs * sizes.num_heads * sizes.head_dim,
        arithmetic="int8" if kv_format == "int8" else "float32",
        run=run,
        touched_bytes=sizes.num_layers * kv_bytes + query_bytes + out.nbytes,
    )


def main() -> None:
    """Measure all shapes of a format together, and print a line for each."""
    options = parser(__doc__)
    options.add_argument("--format", choices=FORMATS, help="default: all of them")
    chosen = options.parse_args()
    bench = Bench(chosen)
    for kv_format in [chosen.format] if chosen.format else FORMATS:
        work = partial(work_of, bench, kv_format=kv_format)
        bench.measure([work(shape) for shape in SHAPES])
    bench.close()


if __name__ == "__main__":
    main()
