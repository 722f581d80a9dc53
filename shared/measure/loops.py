"""Outputs that go round in circles: whatever drafts by looking back is at its best there."""

from collections import Counter
from collections.abc import Sequence

_SIZE = 8
_NUM_TIMES = 3


def is_looping(token_ids: Sequence[int], size: int = _SIZE, num_times: int = _NUM_TIMES) -> bool:
    """Tell whether some run of `size` tokens stands in it `num_times`, maybe overlapping."""
    last = len(token_ids) - size + 1
    runs = Counter(tuple(token_ids[first : first + size]) for first in range(last))
    return any(count >= num_times for count in runs.values())
