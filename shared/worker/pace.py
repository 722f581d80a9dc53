"""What a step may spend on prompts while streams run: a bounded stretch of their steps. Pure."""

from slipstream.shared.worker.chunks import PromptBudget, TimeBudget
from slipstream.shared.worker.step_cost import Prompts, StepCost, Streams

# Now and then streams step alone while prompts wait, or nobody would know any more how long that
# takes: after a few steps while that is not known well, after more and more when it is. As long as
# it is believed to be less than it is, prompts are blamed for the rest and get next to no rows.
_MIN_MIXED_STEPS, _MAX_MIXED_STEPS = 2, 32
# What was expected times this, or this part of it: steps alike differ by a quarter where others
# compute, too.
_KNOWN_WELL = 1.4


class Pace:
    """
    Keeps a step with prompts within `stretch` times what its streams alone would take.

    Without streams a step with prompts lasts `prompt_step_s`, which is what a newcomer waits.
    """

    def __init__(
        self,
        token_budget: int,
        stretch: float,
        prompt_step_s: float,
        cost: StepCost | None = None,
        *,
        is_in_chunks: bool = True,
    ) -> None:
        """Without chunks nothing is kept: a prompt is computed whole in the next step."""
        self._is_in_chunks = is_in_chunks
        self._token_budget = token_budget
        self._stretch = stretch
        self._prompt_step_s = prompt_step_s
        self._cost = cost or StepCost()
        self._num_mixed_steps = 0
        # Costs that are given are known.
        self._max_num_mixed_steps = _MIN_MIXED_STEPS if cost is None else _MAX_MIXED_STEPS

    def budget(self, streams: Streams) -> PromptBudget | None:
        """Return what prompts may take of the next step beside some streams; None for nothing."""
        if not self._is_in_chunks:
            return PromptBudget(self._token_budget, is_in_chunks=False)
        if not streams.num_rows:
            return PromptBudget(self._token_budget, TimeBudget(self._prompt_step_s, self._cost))
        if self._num_mixed_steps >= self._max_num_mixed_steps:
            return None
        left_s = self._cost.of_streams(streams) * (self._stretch - 1)
        num_rows = max(self._token_budget - streams.num_rows, 1)
        return PromptBudget(num_rows, TimeBudget(left_s, self._cost), is_alone=False)

    def saw(self, streams: Streams, prompts: Prompts, seconds: float) -> None:
        """Take in what a step took."""
        is_mixed = streams.num_rows > 0 and prompts.num_rows > 0
        if prompts.num_rows == 0:
            self._compare(self._cost.of_streams(streams), seconds)
        self._num_mixed_steps = self._num_mixed_steps + 1 if is_mixed else 0
        self._cost.learn(streams, prompts, seconds)

    def _compare(self, expected: float, seconds: float) -> None:
        """Look again soon at what was not foreseen."""
        if expected / _KNOWN_WELL <= seconds <= expected * _KNOWN_WELL:
            self._max_num_mixed_steps = min(2 * self._max_num_mixed_steps, _MAX_MIXED_STEPS)
        else:
            self._max_num_mixed_steps = _MIN_MIXED_STEPS
