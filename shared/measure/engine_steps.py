"""The engine benchmark: steps of several engines and passes over memory, round by round."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.shared.measure.engine_cells import Cell, Workload
from slipstream.shared.measure.engines import Engine, EngineFormat, Report
from slipstream.shared.measure.estimate import Estimate
from slipstream.shared.measure.measured_machine import (
    NUM_WARM_PASSES,
    MeasuredMachine,
    PeakSamples,
    Reader,
    Stream,
)
from slipstream.shared.model.runner import SequenceRows


@dataclass(frozen=True, slots=True)
class StepResult:
    """What was found of one cell of one engine."""

    format: EngineFormat
    cell: Cell
    weight_bytes: int  # that the step reads
    num_bytes: int  # and those of the KV with them
    step_ms: Estimate
    stream: Stream | None  # measured beside decode steps

    @property
    def roofline_fraction(self) -> Estimate:
        """The time that reading the step's bytes takes, over the time that the step takes."""
        assert self.stream is not None, f"no reader ran beside {self.cell.name}"
        scale = self.num_bytes / self.stream.num_bytes
        read_ms = [scale * each for each in self.stream.best_ms.samples]
        return Estimate.of_ratio(self.step_ms.name, read_ms, self.step_ms.samples)


@dataclass(slots=True)
class _Samples:
    step_ms: list[float] = field(default_factory=list)
    read_ms: dict[Reader, list[float]] = field(default_factory=lambda: defaultdict(list))


def measure(
    engines: Sequence[Engine],
    cells: Sequence[Cell],
    workload: Workload,
    machine: MeasuredMachine,
    num_rounds: int,
    *,
    report: Report,
) -> tuple[list[StepResult], PeakSamples]:
    """Take each sample once a round; the first round warms up and is not counted."""
    samples: dict[tuple[Cell, EngineFormat], _Samples] = defaultdict(_Samples)
    peaks = PeakSamples()
    for round_idx in range(num_rounds + 1):
        report(f"round {round_idx} of {num_rounds}" if round_idx else "warming up")
        if round_idx == 1:
            samples.clear()
            peaks = PeakSamples()
        peaks.add(machine)
        for cell in cells:
            batch = workload.batch_of(cell)
            for engine in engines:
                _take(engine, cell, batch, machine, samples[cell, engine.format])
    results = [
        _result(engine, cell, machine, samples[cell, engine.format])
        for engine in engines
        for cell in cells
    ]
    return results, peaks


def _take(
    engine: Engine,
    cell: Cell,
    batch: Sequence[SequenceRows],
    machine: MeasuredMachine,
    samples: _Samples,
) -> None:
    num_warm = 1 if cell.phase == "prefill" else NUM_WARM_PASSES
    samples.step_ms.append(engine.step_ms(batch, num_warm))
    if cell.phase == "decode":
        for reader, milliseconds in machine.read_ms(engine.num_bytes(cell)).items():
            samples.read_ms[reader].append(milliseconds)


def _result(engine: Engine, cell: Cell, machine: MeasuredMachine, samples: _Samples) -> StepResult:
    num_bytes = engine.num_bytes(cell)
    step_ms = Estimate.of(f"{cell.name}: {engine.format.name}", samples.step_ms)
    stream = Stream.of(machine.readable(num_bytes), samples.read_ms) if samples.read_ms else None
    return StepResult(engine.format, cell, engine.weight_bytes, num_bytes, step_ms, stream)
