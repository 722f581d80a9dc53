"""Medians with their bootstrap intervals, as a table and as JSON."""

import platform
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.shared.cores import num_cores

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
        low, high = _interval(name, samples, statistics.median)
        return cls(name, tuple(samples), statistics.median(samples), low, high)

    @classmethod
    def of_ratio(
        cls, name: str, numerators: Sequence[float], denominators: Sequence[float]
    ) -> "Estimate":
        """
        Return one median over the other, of samples that were taken in pairs.

        Pairs are resampled together: what slowed both of them down cancels out.
        """
        pairs = list(zip(numerators, denominators, strict=True))
        low, high = _interval(name, pairs, _ratio_of_medians)
        ratios = tuple(numerator / denominator for numerator, denominator in pairs)
        return cls(name, ratios, _ratio_of_medians(pairs), low, high)


def _ratio_of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    numerators, denominators = zip(*pairs, strict=True)
    ratio: float = statistics.median(numerators) / statistics.median(denominators)
    return ratio


def _interval(
    name: str,
    samples: Sequence[Any],  # Any: numbers, or pairs of them
    statistic: Callable[[Sequence[Any]], float],
) -> tuple[float, float]:
    rng = random.Random(name)  # noqa: S311 - statistics, no secret
    found = sorted(statistic(rng.choices(samples, k=len(samples))) for _ in range(_NUM_RESAMPLES))
    edge = int(_TAIL * _NUM_RESAMPLES)
    return found[edge], found[-1 - edge]


def table(estimates: Sequence[Estimate], unit: str = "milliseconds") -> str:
    """Return one line an estimate."""
    width = max(len(each.name) for each in estimates)
    lines = [f"{unit:<{width}}  {'median':>10}  {'95 % interval':>21}  {'n':>4}"]
    lines += [
        f"{each.name:<{width}}  {each.median:>10.2f}  {each.low:>10.2f} {each.high:>10.2f}"
        f"  {len(each.samples):>4}"
        for each in estimates
    ]
    return "\n".join(lines)


def report(
    estimates: Sequence[Estimate], settings: Mapping[str, Any], unit: str = "ms"
) -> dict[str, Any]:
    """Return what `--json` writes. Any: settings of every kind."""
    return {
        "unit": unit,
        "machine": describe_machine(),
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


def describe_machine() -> dict[str, Any]:
    """Return what figures depend on. Any: text and numbers."""
    return {
        "processor": _processor(),
        "num_cores": num_cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
