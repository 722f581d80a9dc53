"""
What the benchmarks of the kernels share: rounds, the machine beside them, and the table.

An operation can be no faster than the machine moves its bytes, nor than it computes: the longer of
both times is its roofline. Both rates are measured in the same rounds: the bytes a second of the
best reader of as much memory as the operation's runs touch, and multiply-adds from registers.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.machine import ARITHMETICS, LINE_BYTES, Arithmetic, Machine
from slipstream.kernels.cpu.operations import Operations

# Untimed passes before one that counts: a large cache takes some to hold what it can.
NUM_WARM_PASSES = 3
# In less, threads meet rather than read. So small a buffer is read several times for a sample.
_MIN_READ_BYTES = 256 << 10
_SAMPLE_BYTES = 4 << 20
_PREFETCH_BYTES = (0, 4096)
_NUM_RESAMPLES = 2000
_MICRO, _GIGA = 1e-6, 1e9
_HEADER = (
    *("operation", "microseconds", "95 % interval", "bytes", "operations", "GB/s", "GOP/s"),
    *("reader GB/s", "bound by", "of the roofline"),
)

Samples = Sequence[float]


@dataclass(frozen=True, slots=True)
class SmolLM2:
    """The shapes of the default model, SmolLM2-135M."""

    num_layers: int = 30
    hidden: int = 576
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    intermediate: int = 1536
    vocab: int = 49152


@dataclass(frozen=True)
class Work:
    """An operation of one size. `run` runs it `num_runs` times and returns the seconds of one."""

    name: str
    num_bytes: int  # that one run reads and writes
    num_operations: int
    arithmetic: Arithmetic
    run: Callable[[], float]
    touched_bytes: int  # by all runs of a sample: operands that take turns count once each


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the interval that holds it with 95 %, by resampling."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Samples) -> "Spread":
        """Resample with a fixed seed: the same samples say the same."""
        drawn = np.random.default_rng(0).choice(samples, (_NUM_RESAMPLES, len(samples)))
        low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
        return cls(median(samples), float(low), float(high))


@dataclass(slots=True)
class _Found:
    """The samples of one work, and of the readers beside it."""

    seconds: list[float] = field(default_factory=list)
    read_seconds: dict[tuple[int, int], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )


@dataclass(frozen=True)
class Result:
    """What was measured of a work."""

    work: Work
    seconds: Spread
    bytes_per_s: float  # of the best reader
    operations_per_s: float  # from registers

    @property
    def memory_seconds(self) -> float:
        """The time that moving the bytes takes."""
        return self.work.num_bytes / self.bytes_per_s

    @property
    def compute_seconds(self) -> float:
        """The time that computing takes."""
        return self.work.num_operations / self.operations_per_s

    @property
    def fraction(self) -> float:
        """The longer of both times, over the time that the operation takes."""
        return max(self.memory_seconds, self.compute_seconds) / self.seconds.median

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` writes. Any: text and numbers."""
        return {
            "operation": self.work.name,
            "microseconds": self.seconds.median / _MICRO,
            "microseconds_low": self.seconds.low / _MICRO,
            "microseconds_high": self.seconds.high / _MICRO,
            "bytes": self.work.num_bytes,
            "operations": self.work.num_operations,
            "arithmetic": self.work.arithmetic,
            "reader_gb_s": self.bytes_per_s / _GIGA,
            "peak_gop_s": self.operations_per_s / _GIGA,
            "roofline_fraction": self.fraction,
        }

    def cells(self) -> tuple[str, ...]:
        """Return the columns of the table."""
        seconds, work = self.seconds, self.work
        return (
            work.name,
            f"{seconds.median / _MICRO:,.2f}",
            f"{seconds.low / _MICRO:,.2f} to {seconds.high / _MICRO:,.2f}",
            f"{work.num_bytes:,}",
            f"{work.num_operations:,}",
            f"{work.num_bytes / seconds.median / _GIGA:,.1f}",
            f"{work.num_operations / seconds.median / _GIGA:,.1f}",
            f"{self.bytes_per_s / _GIGA:,.1f}",
            "memory" if self.memory_seconds >= self.compute_seconds else "compute",
            f"{self.fraction:.0%}",
        )


class Bench:
    """The operations and the machine, on as many threads each, and the options of a program."""

    def __init__(self, options: argparse.Namespace) -> None:
        library = loader.load(options.level)
        self.operations = Operations(library, options.threads)
        self.num_rounds: int = options.rounds
        self._machine = Machine(library, options.threads)
        self._json_file: Path | None = options.json
        self._rng = random.Random(0)
        self._buffer = np.empty(0, np.uint8)
        self._results: list[Result] = []

    def measure(self, works: Sequence[Work]) -> None:
        """Take a sample of each work and of its readers every round; print what came out."""
        self._grow(max(work.touched_bytes for work in works))
        found = [_Found() for _ in works]
        peaks: dict[Arithmetic, list[float]] = defaultdict(list)
        for _ in range(self.num_rounds):
            for arithmetic in ARITHMETICS:
                done = self._machine.multiply_add(arithmetic, self.operations.num_threads)
                peaks[arithmetic].append(done.operations_per_s)
            order = list(zip(works, found, strict=True))
            for work, samples in self._rng.sample(order, len(order)):
                self._sample(work, samples)
        for work, samples in zip(works, found, strict=True):
            self._report(work, samples, peaks)

    def close(self) -> None:
        """Write the file and end the threads."""
        if self._json_file is not None:
            written = {"level": self._machine.level, "num_threads": self.operations.num_threads}
            rows = [result.as_json() for result in self._results]
            self._json_file.write_text(json.dumps({**written, "rows": rows}, indent=1) + "\n")
        self.operations.close()
        self._machine.close()

    def _grow(self, num_bytes: int) -> None:
        if self._buffer.nbytes < num_bytes + _MIN_READ_BYTES:
            # Written, so that each page is one of its own.
            self._buffer = np.arange((num_bytes + _MIN_READ_BYTES) // 8 + 8).view(np.uint8)

    def _sample(self, work: Work, samples: _Found) -> None:
        for _ in range(NUM_WARM_PASSES):
            work.run()
        samples.seconds.append(work.run())
        lines = max(work.touched_bytes, _MIN_READ_BYTES) // LINE_BYTES
        part = self._buffer[: lines * LINE_BYTES]
        num_threads = self.operations.num_threads
        num_passes = max(1, _SAMPLE_BYTES // part.nbytes)
        for _ in range(NUM_WARM_PASSES):
            self._machine.read(part, num_threads)
        for reader in {(count, ahead) for count in (1, num_threads) for ahead in _PREFETCH_BYTES}:
            seconds = [self._machine.read(part, *reader).seconds for _ in range(num_passes)]
            samples.read_seconds[reader].append(median(seconds) / part.nbytes)

    def _report(
        self, work: Work, samples: _Found, peaks: Mapping[Arithmetic, Sequence[float]]
    ) -> None:
        seconds_per_byte = min(median(each) for each in samples.read_seconds.values())
        peak = median(peaks[work.arithmetic])
        result = Result(work, Spread.of(samples.seconds), 1 / seconds_per_byte, peak)
        if not self._results:
            say(_line(_HEADER))
        self._results.append(result)
        say(_line(result.cells()))


def _line(cells: Sequence[str]) -> str:
    widths = (44, 12, 24, 13, 15, 7, 9, 11, 8, 15)
    name, *others = (text.rjust(width) for text, width in zip(cells, widths, strict=True))
    return "  ".join((name.strip().ljust(widths[0]), *others))


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every program."""
    levels = loader.available_levels()
    options = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    options.add_argument("--threads", type=int, default=2, help="default: 2")
    options.add_argument("--rounds", type=int, default=9, help="samples of each (default: 9)")
    options.add_argument("--level", choices=levels, help="ISA level (default: the best)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return options


def numbers(text: str) -> list[int]:
    """Return the numbers of a list with commas."""
    return [int(part) for part in text.split(",")]


def random_floats(*shape: int) -> npt.NDArray[np.float32]:
    """Return normal numbers."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)
