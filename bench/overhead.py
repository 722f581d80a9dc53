"""
Measure how much of the time of a full batch a decode worker spends inside its kernels.

    python bench/overhead.py --rounds 5 --seconds 6 --json overhead.json

The rest is what Slipstream adds to the kernels: choosing tokens, planning steps, text, messages.
Streams that never end fill all seats; a window of some seconds is a sample, read from the worker's
own metrics. Formats take turns, each on a stack of its own, with fresh streams each time.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import defaultdict
from pathlib import Path

from stack import MeteredStack, connected, metered_stack
from streams import streaming

from slipstream.shared.measure.estimate import Estimate, report, table

FORMATS = ("int8", "int4")
NUM_STREAMS = 32
_UNIT = "as named"
_COUNTED = ("engine_busy_seconds_total", "work_seconds_total", "batch_size_sum", "batch_size_count")

Figures = dict[str, float]


async def window(stack: MeteredStack, seconds: float) -> Figures:
    """Return what one window of time shows."""
    before = await asyncio.to_thread(stack.metrics, "decode")
    await asyncio.sleep(seconds)
    after = await asyncio.to_thread(stack.metrics, "decode")
    busy_s, work_s, num_rows, num_steps = (after[name] - before[name] for name in _COUNTED)
    return {
        "% of time in kernels": 100 * busy_s / work_s,
        "ms a step in kernels": 1000 * busy_s / num_steps,
        "ms a step elsewhere": 1000 * (work_s - busy_s) / num_steps,
        "streams in a step": num_rows / num_steps,
    }


async def measure(stack: MeteredStack, rng: random.Random, seconds: float) -> Figures:
    """Fill the seats of a stack and return one window."""
    async with connected(stack.url, "bench-overhead") as bus, streaming(bus, rng, NUM_STREAMS):
        return await window(stack, seconds)


def _samples(num_rounds: int, seconds: float, seed: int) -> dict[str, list[float]]:
    rng = random.Random(seed)
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(num_rounds):
        for weight_format in rng.sample(FORMATS, len(FORMATS)):
            print(f"==> round {number + 1} of {num_rounds}, {weight_format}", file=sys.stderr)
            with metered_stack("--format", weight_format) as stack:
                figures = asyncio.run(measure(stack, rng, seconds))
            for name, value in figures.items():
                found[f"{weight_format}: {name}"].append(value)
    return found


def main() -> None:
    """Measure, print, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a window")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    samples = _samples(options.rounds, options.seconds, options.seed)
    estimates = [Estimate.of(name, values) for name, values in samples.items()]
    print(table(estimates, _UNIT))
    if options.json:
        settings = {name: getattr(options, name) for name in ("rounds", "seconds", "seed")}
        options.json.write_text(json.dumps(report(estimates, settings, _UNIT), indent=1) + "\n")


if __name__ == "__main__":
    main()
