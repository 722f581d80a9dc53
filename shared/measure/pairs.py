"""How often two ways are compared: in pairs, until their ratio is known well enough."""

from collections.abc import Sequence

from slipstream.shared.measure.estimate import Estimate

NARROW = 0.02
# Of fewer pairs the bootstrap makes an interval that holds the median with less than 90 %; one
# pair alone would have an interval of no width at all.
MIN_NUM_PAIRS = 5


def is_first_first(pair_idx: int, turn_idx: int) -> bool:
    """Tell which way goes first: A B B A, so that what drifts falls on both alike."""
    return (pair_idx + turn_idx) % 2 == 0


def is_enough(name: str, ratios: Sequence[float], max_num_pairs: int) -> bool:
    """Tell whether the 95 % interval of the median ratio is narrow, or pairs have run out."""
    if len(ratios) >= max_num_pairs:
        return True
    if len(ratios) < MIN_NUM_PAIRS:
        return False
    found = Estimate.of(name, ratios)
    return found.high - found.low < NARROW
