"""What `slipstream roofline` does with its options."""

import json
from typing import get_args

import typer

from slipstream.services.cli import roofline_report
from slipstream.services.cli.bench_run import pack_formats
from slipstream.services.cli.console import progress, resolve_cache_dir
from slipstream.services.cli.measure_options import LOCAL, RooflineOptions
from slipstream.services.cli.roofline_report import Line
from slipstream.shared.config import KvFormat, WeightFormat
from slipstream.shared.cores import num_cores
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.engine_cells import Cell, Workload, check_cells, decode, prefill
from slipstream.shared.measure.engine_steps import StepResult, measure
from slipstream.shared.measure.engines import BenchedModel, EngineFormat, opened_engines
from slipstream.shared.measure.hardware import named_hardware
from slipstream.shared.measure.measured_machine import (
    MeasuredMachine,
    measure_alone,
    measured_hardware,
)
from slipstream.shared.measure.roofline import (
    BYTES_PER_WEIGHT,
    KV_FORMATS,
    SEVEN_BILLION,
    Hardware,
    ModelSizes,
    Step,
    Wall,
    decode_step,
    prefill_step,
)

_CONTEXT = 540


def run_roofline(options: RooflineOptions) -> None:
    """Find the walls and print them. Raises ConfigurationError and ModelError."""
    named = None if options.hardware == LOCAL else named_hardware(options.hardware)
    question = _Question(options)
    results: list[StepResult] = []
    if named is not None:
        hardware = named
    elif question.has_engine:
        hardware, results = question.measure_engine()
    else:
        hardware = question.measure_machine()
    lines = question.lines(hardware, results)
    typer.echo(roofline_report.describe(question.sizes, question.format, hardware))
    typer.echo(f"\n{roofline_report.table(lines)}")
    if named is None:
        typer.echo("\nMore, with intervals: slipstream bench engine")
    if options.json_file is not None:
        written = roofline_report.as_json(question.sizes, question.format, hardware, lines)
        options.json_file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


class _Question:
    """What was asked, with its defaults looked up."""

    def __init__(self, options: RooflineOptions) -> None:
        self._options = options
        self._num_threads = options.threads or num_cores()
        self._model: BenchedModel | None = None
        self.format = _format_of(options)
        if options.model == SEVEN_BILLION.name:
            self.sizes, context = SEVEN_BILLION, 0
        else:
            cache_dir = resolve_cache_dir(options.cache_dir)
            self._model = BenchedModel.open(options.model, cache_dir, report=progress)
            self.sizes, context = ModelSizes.of(self._model.config), _CONTEXT
        if options.context is not None:
            context = options.context
        self.cells = [decode(options.batch, context), prefill(options.prompt)]
        if self._model is not None:
            check_cells(self.cells, self._model.config.max_context_length)

    @property
    def has_engine(self) -> bool:
        """Tell whether the engine can run it, and be timed."""
        return (
            self._model is not None
            and self.format.weights in get_args(WeightFormat)
            and self.format.kv in get_args(KvFormat)
        )

    def measure_engine(self) -> tuple[Hardware, list[StepResult]]:
        """Measure this machine and the engine on it."""
        model, options = self._model, self._options
        assert model is not None, "there is no engine without a model"
        pack_formats(options.model, [self.format], model.cache_dir)
        workload = Workload(self.cells, model.config.vocab_size)
        with opened_engines(
            model, [self.format], workload, self._num_threads, report=progress
        ) as engines:
            most = max(engines[0].num_bytes(cell) for cell in self.cells)
            with MeasuredMachine.opened(self._num_threads, most) as machine:
                results, peaks = measure(
                    engines, self.cells, workload, machine, options.rounds, report=progress
                )
        stream = results[0].stream
        assert stream is not None, "readers run beside decode steps"
        return measured_hardware(machine, stream, peaks), results

    def measure_machine(self) -> Hardware:
        """Measure this machine alone."""
        num_bytes = self._step(self.cells[0]).num_bytes
        progress("measuring this machine")
        with MeasuredMachine.opened(self._num_threads, num_bytes) as machine:
            return measured_hardware(
                machine, *measure_alone(machine, num_bytes, self._options.rounds)
            )

    def lines(self, hardware: Hardware, results: list[StepResult]) -> list[Line]:
        """Return the walls, beside what was measured of the engine, if it was."""
        if not results:
            return [Line(cell, Wall.of(self._step(cell), hardware), None) for cell in self.cells]
        return [
            Line(
                each.cell,
                Wall.of(self._step(each.cell, each.weight_bytes), hardware),
                each.step_ms,
            )
            for each in results
        ]

    def _step(self, cell: Cell, weight_bytes: int | None = None) -> Step:
        if cell.phase == "prefill":
            return prefill_step(
                *(self.sizes, self.format.weights, self.format.kv),
                num_tokens=cell.num_rows,
                weight_bytes=weight_bytes,
            )
        return decode_step(
            *(self.sizes, self.format.weights, self.format.kv),
            batch=cell.batch,
            context=cell.context,
            weight_bytes=weight_bytes,
        )


def _format_of(options: RooflineOptions) -> EngineFormat:
    weights = options.weight_format or ("int8" if options.hardware == LOCAL else "float16")
    _check(weights, "--format", tuple(BYTES_PER_WEIGHT))
    kv = options.kv_format or (weights if weights in KV_FORMATS else "int8")
    _check(kv, "--kv-format", KV_FORMATS)
    return EngineFormat(weights, kv)


def _check(value: str, option: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{option} {value!r} is none of {', '.join(known)}")
