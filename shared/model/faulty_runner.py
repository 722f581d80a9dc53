"""A runner whose logits are no numbers behind one token: for tests of what happens then."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream.shared.model.runner import ModelRunner, SequenceRows
from slipstream.shared.model.wrapped_runner import WrappedRunner


class FaultyRunner(WrappedRunner):
    """Spoils the rows of a token."""

    def __init__(self, runner: ModelRunner, nan_token_id: int) -> None:
        super().__init__(runner)
        self._nan_token_id = nan_token_id

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """Compute all rows; those of the token have a NaN somewhere."""
        logits = super().forward(batch)
        token_ids = [
            token_id
            for rows in batch
            if rows.num_logit_rows
            for token_id in rows.token_ids[-rows.num_logit_rows :]
        ]
        logits[np.array(token_ids) == self._nan_token_id, 7] = np.nan
        return logits
