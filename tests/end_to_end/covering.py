"""Few cases in place of a whole product: every pair of values meets in one of them at least."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

Case = dict[str, str]
_Value = tuple[str, str]


def all_cases(factors: Mapping[str, Sequence[str]]) -> list[Case]:
    """Return the product of all factors."""
    return [dict(zip(factors, each, strict=True)) for each in itertools.product(*factors.values())]


def covering_cases(factors: Mapping[str, Sequence[str]]) -> list[Case]:
    """Return cases that hold all pairs of values, each the one that adds most to those before."""
    left = {pair for case in all_cases(factors) for pair in pairs_of(case)}
    chosen: list[Case] = []
    while left:
        best = max(all_cases(factors), key=lambda case: len(left.intersection(pairs_of(case))))
        chosen.append(best)
        left.difference_update(pairs_of(best))
    return chosen


def pairs_of(case: Case) -> Iterator[tuple[_Value, _Value]]:
    """Yield the pairs of values that meet in a case."""
    return itertools.combinations(case.items(), 2)
