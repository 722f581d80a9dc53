"""What runs a model's forward pass over a packed batch, and what a sequence contributes to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from slipstream.shared.model.step_counters import StepCounters


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """
    One sequence's part of a step: its last `num_rows` tokens are computed and written.

    Positions [0, num_computed_tokens) are in the KV cache already, the step adds
    [num_computed_tokens, len(token_ids)), and `block_table` covers both.
    """

    token_ids: Sequence[int]  # the whole sequence up to and including this step's rows
    num_computed_tokens: int
    num_rows: int
    block_table: Sequence[int]
    num_logit_rows: int  # for the last so many rows; 0 for a prompt chunk that isn't the last

    def __post_init__(self) -> None:
        assert self.num_rows > 0, "a sequence without rows has no place in a step"
        assert len(self.token_ids) == self.num_computed_tokens + self.num_rows, (
            f"{len(self.token_ids)} tokens, but {self.num_computed_tokens} computed"
            f" and {self.num_rows} rows"
        )
        assert 0 <= self.num_logit_rows <= self.num_rows, (
            f"{self.num_logit_rows} logit rows of {self.num_rows}"
        )

    @property
    def context_len(self) -> int:
        """Number of positions that the last row attends to, itself included."""
        return len(self.token_ids)


class ModelRunner(Protocol):
    """Runs packed batches; the KV of the rows goes into their blocks."""

    vocab_size: int
    num_forwards: int
    numerics: str  # what computes: results of two runners of one name are the same bits

    @property
    def counters(self) -> StepCounters | None:
        """What its passes have taken so far; None where they can't tell."""

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """
        Compute all rows of all sequences in one pass.

        Return [sum of num_logit_rows, vocab_size], in the order of the batch. The caller may
        write into it; it is never reused.
        """
        ...

    def rest(self) -> None:
        """Let go of what only the next pass would need, and could make anew."""

    def close(self) -> None:
        """Let go of threads and of the arena; nothing is run after it."""
