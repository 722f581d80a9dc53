"""Medians with their bootstrap intervals, as a table and as JSON."""

import os
import platform
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NUM_RESAMPLES = 2000
_TAIL = 0.025  # on either side of a 95 % interval


@dataclass(frozen=True)
class Estimate:
    """A median and the interval that holds it with 95 %."""

    name: str
    samples: tuple[float, ...]
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, name: str, samples: Sequence[float]) -> "Estimate":
        """Resample with replacement; the seed is fixed, so that the same samples say the same."""
        rng = random.Random(name)  # noqa: S311 - statistics, no secret
        medians = sorted(
            statistics.median(rng.choices(samples, k=len(samples))) for _ in range(_NUM_RESAMPLES)
        )
        edge = int(_TAIL * _NUM_RESAMPLES)
        return cls(
            name=name,
            samples=tuple(samples),
            median=statistics.median(samples),
            low=medians[edge],
            high=medians[-1 - edge],
        )


def table(estimates: Sequence[Estimate]) -> str:
    """Return one line an estimate, in milliseconds."""
    width = max(len(each.name) for each in estimates)
    lines = [f"{'milliseconds':<{width}}  {'median':>10}  {'95 % interval':>21}  {'n':>4}"]
    lines += [
        f"{each.name:<{width}}  {each.median:>10.2f}  {each.low:>10.2f} {each.high:>10.2f}"
        f"  {len(each.samples):>4}"
        for each in estimates
    ]
    return "\n".join(lines)


def report(estimates: Sequence[Estimate], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `--json` writes. Any: settings of every kind."""
    return {
        "unit": "ms",
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "num_cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "settings": dict(settings),
        "results": {
            each.name: {
                "median": each.median,
                "low": each.low,
                "high": each.high,
                "samples": list(each.samples),
            }
            for each in estimates
        },
    }
