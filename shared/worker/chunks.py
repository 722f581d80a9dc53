"""How the prompts of a step share what it may spend on them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.shared.worker.step_cost import Prompts, StepCost, num_pairs

# A prompt that time cuts short is cut at a multiple of so many rows: what kernels take together, or
# (AMX) half of it. With whole tiles half of what prompts may take was left when few rows fit.
TILE_ROWS = 8


class Waiting(NamedTuple):
    """A prompt that is not computed yet, or not all of it."""

    num_computed_tokens: int
    num_tokens: int  # still to be computed


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """How long the prompts of a step may take, by what steps cost."""

    seconds: float
    cost: StepCost


@dataclass(frozen=True, slots=True)
class PromptBudget:
    """What a step may spend on prompts: rows, and time if that matters."""

    max_num_rows: int
    time: TimeBudget | None = None
    is_alone: bool = True  # there are no streams in the step
    is_in_chunks: bool = True  # else prompts are computed whole: as many as the rows hold, or one


def share(waiting: Sequence[Waiting], budget: PromptBudget) -> list[int]:
    """
    Return how many rows each prompt gets, oldest first.

    None takes more than half of what is left while others wait, so that a short one passes a long
    one; what nobody else needs goes to the first. The first always gets on, by a tile.
    """
    if not budget.is_in_chunks:
        return _whole(waiting, budget.max_num_rows)
    purse = _Purse(budget)
    shares = [0] * len(waiting)
    for idx, each in enumerate(waiting):
        is_last = idx == len(waiting) - 1
        shares[idx] = purse.take(each, 0, 1.0 if is_last else 0.5)
    for idx, each in enumerate(waiting):
        shares[idx] += purse.take(each, shares[idx], 1.0)
    if waiting and not any(shares):
        shares[0] = min(waiting[0].num_tokens, TILE_ROWS, budget.max_num_rows)
    return shares


def _whole(waiting: Sequence[Waiting], max_num_rows: int) -> list[int]:
    shares = [0] * len(waiting)
    for idx, each in enumerate(waiting):
        if idx > 0 and sum(shares) + each.num_tokens > max_num_rows:
            break
        shares[idx] = each.num_tokens
    return shares


class _Purse:
    """What is left of a budget."""

    def __init__(self, budget: PromptBudget) -> None:
        self._num_rows = budget.max_num_rows
        self._time = budget.time
        self._is_empty_step = budget.is_alone

    def take(self, prompt: Waiting, num_taken: int, part: float) -> int:
        """Spend up to a part of what is left on a prompt that has some rows; return the rows."""
        num_computed = prompt.num_computed_tokens + num_taken
        num_wanted = prompt.num_tokens - num_taken
        if num_wanted == 0 or self._num_rows == 0:
            return 0
        num_rows = min(num_wanted, max(1, int(self._num_rows * part)))
        if self._time is not None:
            num_rows = self._take_time(self._time, num_computed, num_rows, part)
        if num_rows > 0:
            self._num_rows -= num_rows
            self._is_empty_step = False
        return num_rows

    def _take_time(self, time: TimeBudget, num_computed: int, num_wanted: int, part: float) -> int:
        """Return how many of the rows a part of the time is enough for, and take it."""
        num_rows = time.cost.max_num_rows(
            time.seconds * part, num_computed, is_first_alone=self._is_empty_step
        )
        num_rows = num_wanted if num_rows >= num_wanted else num_rows // TILE_ROWS * TILE_ROWS
        if num_rows > 0:
            rows = Prompts(num_rows, num_pairs(num_computed, num_rows))
            spent_s = time.cost.of_prompts(rows, is_alone=self._is_empty_step)
            self._time = TimeBudget(time.seconds - spent_s, time.cost)
        return num_rows
