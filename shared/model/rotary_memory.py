"""Cosines and sines of the positions that contexts have reached; memory is taken as they grow."""

import mmap

import numpy as np

from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packing import Weights, rotary_tables

# So many at a time: 64 KiB for each table of a head of 64, few enough that most workers never
# touch what a model's longest context would take (2 MB for 8192 positions).
_NUM_AT_ONCE = 512


class RotaryMemory:
    """Tables that stay where they are and are filled from the first position on."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self.cosines, self.sines = (_untouched(config) for _ in range(2))
        self._num_filled = 0

    def reach(self, num_positions: int) -> None:
        """Fill what is missing of the first so many positions."""
        config = self._config
        while self._num_filled < num_positions:
            first = self._num_filled
            end = min(first + _NUM_AT_ONCE, config.max_context_length)
            assert first < end, f"{num_positions} positions in {config.max_context_length}"
            made = rotary_tables(config.head_dim, config.rope_theta, end - first, first)
            self.cosines[first:end], self.sines[first:end] = made
            self._num_filled = end


def _untouched(config: ModelConfig) -> Weights:
    # A mapping of its own: what an allocator hands out may have been used, and so be there already.
    num_values = config.max_context_length * (config.head_dim // 2)
    memory = mmap.mmap(-1, num_values * 4)
    return np.frombuffer(memory, np.float32).reshape(config.max_context_length, -1)
