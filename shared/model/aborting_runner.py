"""A runner that ends its process over one token: for tests of what becomes of the others."""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream.shared.model.runner import ModelRunner, SequenceRows
from slipstream.shared.model.wrapped_runner import WrappedRunner


class AbortingRunner(WrappedRunner):
    """Aborts at the end of a pass with the token."""

    def __init__(self, runner: ModelRunner, abort_token_id: int) -> None:
        super().__init__(runner)
        self._abort_token_id = abort_token_id

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """Compute all rows, and write their KV, before it is too late for them."""
        logits = super().forward(batch)
        if any(self._abort_token_id in rows.token_ids for rows in batch):
            os.abort()
        return logits
