"""Few rows in which the values of features meet: all pairs, or any so many at a time."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

Values = Mapping[str, Sequence[str]]  # of each feature, by name
Row = dict[str, str]  # one value of each feature
Combination = tuple[tuple[str, str], ...]


def covering_rows(
    values: Values, strength: int, num_times: int = 1, also: Sequence[Row] = ()
) -> list[Row]:
    """
    Return rows that have every combination of so many values, so many times, chosen greedily.

    `also` are combinations, of any size, that each have a row of their own.
    """
    rng = random.Random(strength)
    missing = dict.fromkeys(combinations(values, strength), num_times)
    rows: list[Row] = []
    while missing or len(rows) < len(also):
        row = dict(also[len(rows)] if len(rows) < len(also) else next(iter(missing)))
        for feature in rng.sample(list(values), len(values)):
            if feature not in row:
                row[feature] = _best(values, row, feature, strength, missing, rng)
        rows.append({feature: row[feature] for feature in values})
        for covered in itertools.combinations(rows[-1].items(), strength):
            _count_down(missing, covered)
    return rows


def combinations(values: Values, strength: int) -> Iterator[Combination]:
    """Yield all values of any so many features."""
    for some in itertools.combinations(values, strength):
        yield from itertools.product(*([(name, value) for value in values[name]] for name in some))


def _count_down(missing: dict[Combination, int], covered: Combination) -> None:
    if covered in missing:
        missing[covered] -= 1
        if missing[covered] == 0:
            del missing[covered]


def _best(
    values: Values,
    row: Row,
    feature: str,
    strength: int,
    missing: Mapping[Combination, int],
    rng: random.Random,
) -> str:
    """Return the value with which a row, which may still lack features, covers most."""

    def num_covered(value: str) -> int:
        found = {**row, feature: value}
        items = [(name, found[name]) for name in values if name in found]
        return sum(some in missing for some in itertools.combinations(items, strength))

    # Of several as good any one, or rows would be much alike.
    return max(rng.sample(values[feature], len(values[feature])), key=num_covered)
