"""Scrambled words from counters: randomness that is a function of its inputs and nothing else."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15  # the counter's increment: 2^64 divided by the golden ratio, odd
WORD = (1 << 64) - 1


def mix(words: Words) -> Words:
    """Scramble each word: the output function of splitmix64 (doi:10.1145/2714064.2660195)."""
    words = words ^ (words >> np.uint64(30))
    # In place from here on: over a whole vocabulary fresh arrays would cost more than arithmetic.
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def mix_one(word: int) -> int:
    """Scramble one word like `mix`, without what an array of it would cost."""
    word ^= word >> 30
    word = word * 0xBF58476D1CE4E5B9 & WORD
    word ^= word >> 27
    word = word * 0x94D049BB133111EB & WORD
    return word ^ word >> 31
