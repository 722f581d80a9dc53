"""What `slipstream roofline` prints and writes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.shared.measure.engine_cells import Cell
from slipstream.shared.measure.engines import EngineFormat
from slipstream.shared.measure.estimate import Estimate
from slipstream.shared.measure.roofline import Hardware, ModelSizes, Wall

_GIGA = 1e9
_TERA = 1e12
_COLUMNS = ("", "operations", "bytes", "computing", "reading", "binds", "factor", "at most")
_ENGINE_COLUMNS = ("the engine", "reaches")


@dataclass(frozen=True, slots=True)
class Line:
    """A step at the wall, and as the engine does it where that was measured."""

    cell: Cell
    wall: Wall
    engine_ms: Estimate | None

    @property
    def fraction(self) -> float | None:
        """What the engine reaches of what the wall allows."""
        if self.engine_ms is None:
            return None
        return self.wall.step_s * 1000 / self.engine_ms.median


def describe(sizes: ModelSizes, engine_format: EngineFormat, hardware: Hardware) -> str:
    """Return what is asked, in two lines."""
    rates = ", ".join(
        f"{name} {_rounded(rate / _TERA)} {_unit(name, 'T')}/s"
        for name, rate in hardware.operations_per_s.items()
    )
    return (
        f"{sizes.name}: {_rounded(sizes.num_weights / _GIGA)} billion weights in "
        f"{engine_format.weights}, KV cache in {engine_format.kv}\n"
        f"{hardware.name}: reads {_rounded(hardware.bytes_per_s / _GIGA)} GB/s; computes {rates}"
    )


def table(lines: Sequence[Line]) -> str:
    """Return one line a step."""
    has_engine = any(line.engine_ms is not None for line in lines)
    rows = [_COLUMNS + (_ENGINE_COLUMNS if has_engine else ()), *map(_row, lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _row(line: Line) -> tuple[str, ...]:
    wall = line.wall
    row = (
        line.cell.name,
        f"{_rounded(wall.step.operations / _GIGA)} {_unit(wall.step.weight_format, 'G')}",
        f"{_rounded(wall.step.num_bytes / _GIGA)} GB",
        f"{_rounded(wall.compute_s * 1000)} ms",
        f"{_rounded(wall.memory_s * 1000)} ms",
        wall.binds,
        _rounded(wall.factor),
        f"{_rounded(wall.tokens_per_s)} tokens/s",
    )
    if line.engine_ms is None:
        return row
    return (*row, f"{_rounded(line.engine_ms.median)} ms", f"{line.fraction:.0%}")


def as_json(
    sizes: ModelSizes, engine_format: EngineFormat, hardware: Hardware, lines: Sequence[Line]
) -> dict[str, Any]:
    """Return what `--json` writes. Any: text and numbers."""
    return {
        "model": sizes.name,
        "num_weights": sizes.num_weights,
        "format": engine_format.weights,
        "kv_format": engine_format.kv,
        "hardware": {
            "name": hardware.name,
            "bytes_per_s": hardware.bytes_per_s,
            "operations_per_s": dict(hardware.operations_per_s),
        },
        "steps": [_as_row(line) for line in lines],
    }


def _as_row(line: Line) -> dict[str, Any]:  # Any: as above
    wall = line.wall
    row: dict[str, Any] = {  # Any: as above
        "phase": line.cell.phase,
        "batch": line.cell.batch,
        "context": line.cell.context,
        "num_rows": line.cell.num_rows,
        "operations": wall.step.operations,
        "bytes": wall.step.num_bytes,
        "compute_ms": wall.compute_s * 1000,
        "memory_ms": wall.memory_s * 1000,
        "binds": wall.binds,
        "factor": wall.factor,
        "tokens_per_s": wall.tokens_per_s,
    }
    if line.engine_ms is not None:
        row |= {
            "engine_ms": line.engine_ms.median,
            "engine_ms_low": line.engine_ms.low,
            "engine_ms_high": line.engine_ms.high,
            "engine_fraction": line.fraction,
        }
    return row


def _rounded(value: float) -> str:
    """Return three digits, without an exponent."""
    magnitude = math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:,.{max(0, 2 - magnitude)}f}"


def _unit(number_format: str, prefix: str) -> str:
    return prefix + ("FLOP" if number_format.startswith(("float", "bf")) else "OP")
