"""
Measure what it costs to choose a token from a row of logits, natively and in numpy.

For example:

    python bench/sampling.py --rounds 60 --json FILE

Every round takes a sample of each way, in an order of its own, of rows that take turns. `--between`
reads so much memory before each sample, as a step does: then rows and code come from further away.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from slipstream.shared.measure.estimate import Estimate, describe_machine
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.row_passes import (
    Logits,
    NativePasses,
    NumpyPasses,
    RowPasses,
    row_passes,
)
from slipstream.shared.model.sampling import Sampler

_MICROSECONDS = 1e6
_MIB = 1 << 20
_STAGES = {
    "greedy": SamplingParameters(seed=1, temperature=0.0),
    "greedy, 5 logprobs": SamplingParameters(seed=1, temperature=0.0, num_logprobs=5),
    "temperature 1": SamplingParameters(seed=1),
    "top_k 50": SamplingParameters(seed=1, top_k=50),
    "top_p 0.95": SamplingParameters(seed=1, top_p=0.95),
    "top_p 0.95, temperature 0.7": SamplingParameters(seed=1, top_p=0.95, temperature=0.7),
    "min_p 0.05": SamplingParameters(seed=1, min_p=0.05),
}


def random_rows(num_rows: int, vocab_size: int) -> Logits:
    """Return rows in which top_p keeps some tens to some hundreds, as the default model's do."""
    generator = np.random.default_rng(0)
    rows = generator.normal(8.0, 3.3, (num_rows, vocab_size)).astype(np.float32)
    rows[:, :20] += generator.uniform(8.0, 14.0, (num_rows, 20)).astype(np.float32)
    return rows


def microseconds_a_token(passes: RowPasses, parameters: SamplingParameters, rows: Logits) -> float:
    """Choose a token from each row, as a step does for its batch."""
    samplers = [Sampler(parameters, [], passes=passes) for _ in rows]
    began_s = time.perf_counter()
    for sampler, row, peak in zip(samplers, rows, passes.peaks(rows), strict=True):
        sampler.sample(row, peak)
    return (time.perf_counter() - began_s) / len(rows) * _MICROSECONDS


def measure(options: argparse.Namespace) -> list[Estimate]:
    """Take the samples."""
    ways = {"numpy": NumpyPasses(), "native": row_passes()}
    assert isinstance(ways["native"], NativePasses), "the native kernels were not built"
    rows = random_rows(max(32, options.batch), options.vocab)
    between = np.zeros(options.between * _MIB, np.uint8)
    rng = random.Random(0)
    cells = [(stage, way) for stage in _STAGES for way in ways]
    samples: dict[str, list[float]] = defaultdict(list)
    for round_idx in range(options.rounds):
        first = round_idx * options.batch % (len(rows) - options.batch + 1)
        for stage, way in rng.sample(cells, len(cells)):
            between.max(initial=0)
            found = microseconds_a_token(
                ways[way], _STAGES[stage], rows[first : first + options.batch]
            )
            samples[f"{stage}: {way}"].append(found)
    return [Estimate.of(f"{stage}: {way}", samples[f"{stage}: {way}"]) for stage, way in cells]


def main() -> None:
    """Measure, print, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="samples of each (default: 60)")
    parser.add_argument("--batch", type=int, default=1, help="rows of a step (default: 1)")
    parser.add_argument("--vocab", type=int, default=49_152, help="default: 49152")
    parser.add_argument("--between", type=int, default=0, metavar="MIB", help="default: 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    estimates = measure(options)
    width = max(len(each.name) for each in estimates)
    for each in estimates:
        print(
            f"{each.name:<{width}}  {each.median:9.1f} microseconds a token"
            f"  ({each.low:.1f} to {each.high:.1f})"
        )
    if options.json:
        figures = {each.name: [each.median, each.low, each.high] for each in estimates}
        settings = {
            name: getattr(options, name) for name in ("rounds", "batch", "vocab", "between")
        }
        written = {
            "unit": "us",
            "machine": describe_machine(),
            "settings": settings,
            "results": figures,
        }
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
