"""Where one way to serve becomes better than another as the load grows. Pure."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Nearer than this, two figures of a few runs say nothing of who is better.
_EQUAL = 0.05


@dataclass(frozen=True)
class Crossing:
    """One figure of two ways over a load that grows."""

    name: str
    loads: Sequence[float]
    # By load: 0 or 1 for the way that is better, None where they are equal or one has no figure.
    winners: Sequence[int | None]
    at: Sequence[float]  # loads at which they change places, between two that were measured

    def as_row(self, first: str, second: str) -> dict[str, Any]:
        """Return it for JSON, with the names of both. Any: text, numbers and lists."""
        names = (first, second)
        return {
            "figure": self.name,
            "loads": list(self.loads),
            "better": [None if each is None else names[each] for each in self.winners],
            "crosses_at": list(self.at),
        }


def crossings(
    name: str,
    loads: Sequence[float],
    first: Sequence[float | None],
    second: Sequence[float | None],
    *,
    is_more_better: bool,
) -> Crossing:
    """Compare two ways load by load; loads come in any order."""
    ordered = sorted(zip(loads, first, second, strict=True), key=lambda each: each[0])
    gains = [
        (load, _gain(one, other, is_more_better=is_more_better)) for load, one, other in ordered
    ]
    known = [(load, gain) for load, gain in gains if gain is not None and abs(gain) >= _EQUAL]
    at = [
        before + (after - before) * gain / (gain - next_gain)
        for (before, gain), (after, next_gain) in itertools.pairwise(known)
        if gain * next_gain < 0
    ]
    winners = [_winner(gain) for _, gain in gains]
    return Crossing(name, [load for load, _ in gains], winners, at)


def _gain(one: float | None, other: float | None, *, is_more_better: bool) -> float | None:
    """Return how much better the second is, as a part of the larger one."""
    if one is None or other is None:
        return None
    largest = max(abs(one), abs(other))
    if largest == 0:
        return 0.0
    return (other - one if is_more_better else one - other) / largest


def _winner(gain: float | None) -> int | None:
    if gain is None or abs(gain) < _EQUAL:
        return None
    return int(gain > 0)
