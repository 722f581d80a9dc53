"""What the programs here make of their figures: percentiles of short times, and a file of JSON."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.shared.measure.estimate import describe_machine
from slipstream.shared.measure.load.summary import percentile

_COLUMNS = {50: "p50", 99: "p99", 100: "longest"}
_NAME_WIDTH = 24


def make_parser(docstring: str | None) -> argparse.ArgumentParser:
    """Return the parser of a program: what it says of itself first, and `--json`."""
    parser = argparse.ArgumentParser(description=(docstring or "").strip().partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return what figures depend on: all options but `--json`. Any: values of every type."""
    return {name: value for name, value in vars(options).items() if name != "json"}


def write(options: argparse.Namespace, report: Mapping[str, Any]) -> None:
    """Write a report where `--json` says, if it does. Any: JSON."""
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def write_results(
    options: argparse.Namespace, results: Mapping[str, Any], unit: str | None = None
) -> None:
    """Write figures with the machine and the settings; each has its unit, or its name says it."""
    report = {
        "machine": describe_machine(),
        "settings": settings_of(options),
        "results": results,
    }
    write(options, report if unit is None else {"unit": unit, **report})


def microseconds(samples_ns: Sequence[int]) -> dict[str, float]:
    """Return the percentiles of some times, the longest as the hundredth."""
    ordered = sorted(samples_ns)
    return {f"p{percent}": percentile(ordered, percent) / 1000 for percent in _COLUMNS}


def heading() -> str:
    """Return the first line of a table of microseconds."""
    return _line("microseconds", (f"{column:>9}" for column in _COLUMNS.values()))


def row(name: str, figures: Mapping[str, float]) -> str:
    """Return a line of it."""
    return _line(name, (f"{value:9.1f}" for value in figures.values()))


def _line(name: str, cells: Iterable[str]) -> str:
    return f"{name:<{_NAME_WIDTH}}{''.join(cells)}"
