"""Programs behind the figures of docs/benchmarks.md, run for tests that hold them near those."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# Bars in milliseconds and shares of a rate have so many times as much room: neighbours are noisy.
ROOM = 10

_BENCH = Path(__file__).parents[2] / "bench"


def run(tmp_path: Path, *command: str | Path) -> dict[str, Any]:  # Any: JSON
    """Return what a command writes with --json."""
    path = tmp_path / "figures.json"
    subprocess.run([*command, "--json", path], check=True, timeout=280)
    figures: dict[str, Any] = json.loads(path.read_bytes())
    return figures


def results(tmp_path: Path, name: str, *options: str) -> dict[str, Any]:  # Any: JSON
    """Return the results of a program of ours."""
    found: dict[str, Any] = run(tmp_path, sys.executable, _BENCH / name, *options)["results"]
    return found


def medians(tmp_path: Path, name: str, *options: str) -> dict[str, float]:
    """Return the medians of a program of ours."""
    return {key: each["median"] for key, each in results(tmp_path, name, *options).items()}
