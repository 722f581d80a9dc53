"""A runner whose logits are no numbers behind one token: for tests of what happens then."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream.shared.model.runner import ModelRunner, SequenceRows


class FaultyRunner:
    """Runs another one, and spoils the rows of a token. See `ModelRunner`."""

    def __init__(self, runner: ModelRunner, nan_token_id: int) -> None:
        self._runner = runner
        self._nan_token_id = nan_token_id
        self.num_forwards = 0
        self.vocab_size = runner.vocab_size
        self.numerics = runner.numerics
        self.counters = runner.counters

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """Compute all rows; those of the token have a NaN somewhere."""
        self.num_forwards += 1
        logits = self._runner.forward(batch)
        token_ids = [
            token_id
            for rows in batch
            if rows.num_logit_rows
            for token_id in rows.token_ids[-rows.num_logit_rows :]
        ]
        logits[np.array(token_ids) == self._nan_token_id, 7] = np.nan
        return logits

    def rest(self) -> None:
        """Let go of what only the next pass would need."""
        self._runner.rest()

    def close(self) -> None:
        """Let go of threads and of the arena."""
        self._runner.close()
