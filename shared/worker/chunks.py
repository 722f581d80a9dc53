"""How the prompts of a step share what it may spend on them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.shared.worker.step_cost import Prompts, StepCost, num_pairs

# Kernels take rows by so many; a prompt that time cuts short is cut there.
TILE_ROWS = 16


class Waiting(NamedTuple):
    """A prompt that is not computed yet, or not all of it."""

    num_computed_tokens: int
    num_tokens: int  # still to be computed


@dataclass(frozen=True, slots=True)
class PromptBudget:
    """What a step may spend on prompts: rows, and time where the cost of steps is known."""

    max_num_rows: int
    max_s: float | None = None
    cost: StepCost | None = None
    is_alone: bool = True  # there are no streams in the step


def share(waiting: Sequence[Waiting], budget: PromptBudget) -> list[int]:
    """
    Return how many rows each prompt gets, oldest first.

    None takes more than half of what is left while others wait, so that a short one passes a long
    one; what nobody else needs goes to the first. The first always gets on, by a tile.
    """
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


class _Purse:
    """What is left of a budget."""

    def __init__(self, budget: PromptBudget) -> None:
        self._budget = budget
        self._num_rows = budget.max_num_rows
        self._seconds = budget.max_s
        self._is_empty_step = budget.is_alone

    def take(self, prompt: Waiting, num_taken: int, part: float) -> int:
        """Spend up to a part of what is left on a prompt that has some rows; return the rows."""
        num_computed = prompt.num_computed_tokens + num_taken
        num_wanted = prompt.num_tokens - num_taken
        if num_wanted == 0 or self._num_rows == 0:
            return 0
        num_rows = min(num_wanted, max(1, int(self._num_rows * part)))
        num_rows = min(num_rows, self._num_rows_in_time(num_computed, num_rows, part))
        self._pay(num_computed, num_rows)
        return num_rows

    def _num_rows_in_time(self, num_computed: int, num_wanted: int, part: float) -> int:
        if self._seconds is None or self._budget.cost is None:
            return num_wanted
        num_rows = self._budget.cost.max_num_rows(
            self._seconds * part, num_computed, is_first_alone=self._is_empty_step
        )
        return num_wanted if num_rows >= num_wanted else num_rows // TILE_ROWS * TILE_ROWS

    def _pay(self, num_computed: int, num_rows: int) -> None:
        if num_rows == 0:
            return
        self._num_rows -= num_rows
        if self._seconds is not None and self._budget.cost is not None:
            rows = Prompts(num_rows, num_pairs(num_computed, num_rows))
            self._seconds -= self._budget.cost.of_prompts(rows, is_alone=self._is_empty_step)
        self._is_empty_step = False
