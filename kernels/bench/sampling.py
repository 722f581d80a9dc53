"""
Time the sampler's passes over a vocabulary of logits, beside numpy doing the same.

    python kernels/bench/sampling.py --batch 1,32

Rows take turns, as many as a step of the largest batch has. One thread, as in a step. What a pass
must do at least is to read its rows; the operations of those that compute are counted as written:
24 in float64 for a weight, which count twice, and as many for the noise of a token.
"""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from slipstream.kernels.bench.harness import Bench, SmolLM2, Work, numbers, parser
from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.sampling import SamplingKernels

_VOCAB = SmolLM2().vocab
_NUM_ROWS = 32
_MIN_RUNS = 96
_COMPARE, _WEIGH, _DRAW = 1, 48, 48
_TOP_P = 0.95
# No bound of a sum is so tight here that numpy would have to say more.
_SUM_ERROR = 1e-13

Rows = npt.NDArray[np.float32]
Pass = Callable[[Rows], object]


def random_rows() -> Rows:
    """Return rows with a few likely tokens, as many as top_p keeps with the default model."""
    generator = np.random.default_rng(0)
    rows = generator.normal(8.0, 3.3, (_NUM_ROWS, _VOCAB)).astype(np.float32)
    rows[:, :20] += generator.uniform(8.0, 14.0, (_NUM_ROWS, 20)).astype(np.float32)
    return rows


def work_of(name: str, batches: list[Rows], operations: int, call: Pass) -> Work:
    """Return a pass over batches that take turns."""
    num_runs = max(_MIN_RUNS // len(batches[0]), len(batches))

    def run() -> float:
        began_s = time.perf_counter()
        for run_idx in range(num_runs):
            call(batches[run_idx % len(batches)])
        return (time.perf_counter() - began_s) / num_runs

    touched_bytes = sum(batch.nbytes for batch in batches)
    num_operations = operations * batches[0].size
    return Work(name, batches[0].nbytes, num_operations, "float32", run, touched_bytes)


def peaks_of(kernels: SamplingKernels, rows: Rows, batch: int) -> list[Work]:
    """Return the largest logits of a batch, natively and in numpy."""
    batches = [rows[first : first + batch] for first in range(0, len(rows) - batch + 1, batch)]
    return [
        work_of(f"peaks of {batch}", batches, _COMPARE, kernels.find_peaks),
        work_of(f"peaks of {batch}, numpy", batches, _COMPARE, lambda some: some.argmax(axis=1)),
    ]


def passes_over_one(kernels: SamplingKernels, rows: Rows) -> list[Work]:
    """Return what is done to one row, natively and in numpy where that has a function for it."""
    maxima = {row.ctypes.data: float(row.max()) for row in rows}
    peaks = {row.ctypes.data: int(row.argmax()) for row in rows}
    batches = [rows[idx : idx + 1] for idx in range(len(rows))]

    def maximum_of(some: Rows) -> float:
        return maxima[some.ctypes.data]

    def largest(num_largest: int) -> Pass:
        return lambda some: kernels.find_largest(some[0], num_largest)

    def partitioned(num_largest: int) -> Pass:
        return lambda some: np.partition(some[0], -num_largest)[-num_largest:]

    def total_weight(some: Rows) -> float:
        return kernels.total_weight(some[0], maximum_of(some), 1.0)

    def added_up(some: Rows) -> float:
        return float(np.exp(some[0].astype(np.float64) - maximum_of(some)).sum())

    def nucleus(some: Rows) -> int | None:
        return kernels.find_nucleus(some[0], maximum_of(some), 1.0, _TOP_P, _SUM_ERROR)

    def contenders(some: Rows) -> object:
        peak = peaks[some.ctypes.data]
        return kernels.find_contenders(some[0], peak, 1.0, 7, 3, (-np.inf, _VOCAB))

    works = []
    for count in (5, 50, 500):
        works.append(work_of(f"{count} largest", batches, _COMPARE, largest(count)))
        name = f"{count} largest, unordered, numpy"
        works.append(work_of(name, batches, _COMPARE, partitioned(count)))
    return [
        *works,
        work_of("total weight", batches, _WEIGH, total_weight),
        work_of("total weight, numpy", batches, _WEIGH, added_up),
        work_of(f"nucleus of {_TOP_P}", batches, _WEIGH, nucleus),
        work_of("contenders", batches, _DRAW, contenders),
    ]


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.set_defaults(threads=1)
    options.add_argument("--batch", type=numbers, default=[1, 32], help="default: 1,32")
    parsed = options.parse_args()
    bench, rows = Bench(parsed), random_rows()
    kernels = SamplingKernels(loader.load(parsed.level))
    works = [work for batch in parsed.batch for work in peaks_of(kernels, rows, batch)]
    bench.measure([*works, *passes_over_one(kernels, rows)])
    bench.close()


if __name__ == "__main__":
    main()
