"""The machine we run on, measured: how fast it reads a buffer, and multiplies and adds."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from slipstream.kernels.cpu.loader import NativeLibrary, NativeUnavailableError, load
from slipstream.kernels.cpu.machine import ARITHMETICS, LINE_BYTES, Arithmetic, Machine
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.estimate import Estimate
from slipstream.shared.measure.roofline import Hardware

# Beyond this the rate does not depend on the size: no cache is near.
MAX_BUFFER_BYTES = 4 << 30
# Untimed passes before one that counts. Steps follow one another over the same bytes, and a large
# cache takes many passes to hold them: 144 MB were read at 25 GB/s first, at 36 the eighth time and
# at 40 in the end. So engines and readers get the same start.
NUM_WARM_PASSES = 8
# No distance is the best on every machine; 0 leaves it to the hardware.
_PREFETCH_BYTES = (0, 1024, 2048, 4096, 8192, 16384)
_KIB = 1024


def native_library() -> NativeLibrary:
    """Return the best level. Raises ConfigurationError."""
    try:
        return load()
    except NativeUnavailableError as error:
        raise ConfigurationError(f"{error}; install with a C++ compiler") from error


@dataclass(frozen=True, slots=True)
class Reader:
    """A way to read memory."""

    num_threads: int
    prefetch_bytes: int

    @property
    def name(self) -> str:
        """For people."""
        plural = "s" if self.num_threads > 1 else ""
        ahead = f"{self.prefetch_bytes // _KIB} KiB ahead" if self.prefetch_bytes else "plain"
        return f"{self.num_threads} thread{plural}, {ahead}"


def readers(num_threads: int) -> list[Reader]:
    """Return the readers that compete: one thread and all of them, plain and prefetching."""
    counts = sorted({1, num_threads})
    return [Reader(count, distance) for count in counts for distance in _PREFETCH_BYTES]


@dataclass(frozen=True, slots=True)
class Stream:
    """How long each reader takes for a number of bytes; the fastest is what the machine can do."""

    num_bytes: int
    read_ms: Mapping[Reader, Estimate]

    @classmethod
    def of(cls, num_bytes: int, samples_ms: Mapping[Reader, Sequence[float]]) -> "Stream":
        """Take the medians."""
        named = {reader: Estimate.of(reader.name, each) for reader, each in samples_ms.items()}
        return cls(num_bytes, named)

    @property
    def best(self) -> Reader:
        """The fastest reader."""
        return min(self.read_ms, key=lambda reader: self.read_ms[reader].median)

    @property
    def best_ms(self) -> Estimate:
        """How long the fastest takes."""
        return self.read_ms[self.best]

    @property
    def bytes_per_s(self) -> float:
        """What the fastest reads."""
        return self.rate(self.best_ms.median)

    def rate(self, milliseconds: float) -> float:
        """Return the bytes a second."""
        return self.num_bytes / milliseconds * 1000


@dataclass(slots=True)
class PeakSamples:
    """Operations a second from registers, by kind."""

    rates: dict[Arithmetic, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, machine: "MeasuredMachine") -> None:
        """Take one sample of each."""
        for arithmetic in ARITHMETICS:
            self.rates[arithmetic].append(machine.operations_per_s(arithmetic))

    def estimates(self) -> dict[str, Estimate]:
        """Return the medians."""
        return {name: Estimate.of(name, samples) for name, samples in self.rates.items()}


class MeasuredMachine:
    """The native kernels' measures, over a buffer of its own."""

    def __init__(self, num_threads: int, max_bytes: float) -> None:
        try:
            self._machine = Machine(native_library(), num_threads)
        except NativeUnavailableError as error:
            raise ConfigurationError(str(error)) from error
        self.num_threads = num_threads
        self.level = self._machine.level
        self.readers = readers(num_threads)
        self._rng = random.Random(0)  # noqa: S311 - an order, no secret
        num_words = int(min(max_bytes, MAX_BUFFER_BYTES)) // LINE_BYTES * LINE_BYTES // 8
        # Written, so that each page is one of its own.
        self._buffer = np.arange(num_words, dtype=np.uint64).view(np.uint8)

    @classmethod
    @contextmanager
    def opened(cls, num_threads: int, max_bytes: float) -> Iterator[Self]:
        """Return one whose threads end with the block. Raises ConfigurationError."""
        machine = cls(num_threads, max_bytes)
        try:
            yield machine
        finally:
            machine.close()

    def readable(self, num_bytes: float) -> int:
        """Return how many bytes are read where so many are meant."""
        return min(int(num_bytes) // LINE_BYTES * LINE_BYTES, self._buffer.nbytes)

    def read_ms(self, num_bytes: float) -> dict[Reader, float]:
        """Let each reader read so much once, after the warm passes, in an order of its own."""
        part = self._buffer[: self.readable(num_bytes)]
        for _ in range(NUM_WARM_PASSES):
            self._machine.read(part, self.num_threads)
        found = {
            reader: self._machine.read(part, reader.num_threads, reader.prefetch_bytes).seconds
            for reader in self._rng.sample(self.readers, len(self.readers))
        }
        return {reader: found[reader] * 1000 for reader in self.readers}

    def operations_per_s(self, arithmetic: Arithmetic) -> float:
        """Return what all threads do together."""
        return self._machine.multiply_add(arithmetic, self.num_threads).operations_per_s

    def close(self) -> None:
        """End the threads."""
        self._machine.close()


def measure_alone(
    machine: MeasuredMachine, num_bytes: float, num_rounds: int
) -> tuple[Stream, PeakSamples]:
    """Measure the machine without an engine."""
    samples: dict[Reader, list[float]] = defaultdict(list)
    peaks = PeakSamples()
    for _ in range(num_rounds):
        peaks.add(machine)
        for reader, milliseconds in machine.read_ms(num_bytes).items():
            samples[reader].append(milliseconds)
    return Stream.of(machine.readable(num_bytes), samples), peaks


def measured_hardware(machine: MeasuredMachine, stream: Stream, peaks: PeakSamples) -> Hardware:
    """Return the machine as one of those with a data sheet."""
    plural = "s" if machine.num_threads > 1 else ""
    name = f"this machine ({machine.num_threads} thread{plural}, {machine.level})"
    rates = {name: each.median for name, each in peaks.estimates().items()}
    return Hardware(name, stream.bytes_per_s, rates)
