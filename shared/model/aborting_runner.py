"""A runner that ends its process over one token: for tests of what becomes of the others."""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream.shared.model.runner import ModelRunner, SequenceRows


class AbortingRunner:
    """Runs another one; a pass with the token aborts at its end. See `ModelRunner`."""

    def __init__(self, runner: ModelRunner, abort_token_id: int) -> None:
        self._runner = runner
        self._abort_token_id = abort_token_id
        self.num_forwards = 0
        self.vocab_size = runner.vocab_size
        self.numerics = runner.numerics
        self.counters = runner.counters

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """Compute all rows, and write their KV, before it is too late for them."""
        self.num_forwards += 1
        logits = self._runner.forward(batch)
        if any(self._abort_token_id in rows.token_ids for rows in batch):
            os.abort()
        return logits

    def rest(self) -> None:
        """Let go of what only the next pass would need."""
        self._runner.rest()

    def close(self) -> None:
        """Let go of threads and of the arena."""
        self._runner.close()
