"""A runner around another one, for those that change what a pass does."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream.shared.model.runner import ModelRunner, SequenceRows


class WrappedRunner:
    """Does what the other does. See `ModelRunner`."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.num_forwards = 0
        self.vocab_size = runner.vocab_size
        self.numerics = runner.numerics
        self.counters = runner.counters

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """Compute all rows."""
        self.num_forwards += 1
        return self._runner.forward(batch)

    def rest(self) -> None:
        """Let go of what only the next pass would need."""
        self._runner.rest()

    def close(self) -> None:
        """Let go of threads and of the arena."""
        self._runner.close()
