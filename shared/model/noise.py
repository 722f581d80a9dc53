"""The randomness of a request: each number is a function of seed, output position and a number."""

import numpy as np

from slipstream.shared.model.row_passes import Scores, TokenIds
from slipstream.shared.model.splitmix import GOLDEN, WORD, mix, mix_one


def gumbel_noise(seed: int, output_position: int, token_ids: TokenIds) -> Scores:
    """Return each token's standard Gumbel noise at an output position."""
    counters = token_ids.astype(np.uint64)
    counters += np.uint64(1)
    counters *= np.uint64(GOLDEN)
    counters += np.uint64(_key(seed, output_position))
    words = mix(counters)
    # 52 bits and a half: never 0 or 1, where the logarithms end.
    noise = (words >> np.uint64(12)).astype(np.float64)
    noise += 0.5
    noise *= 2.0**-52
    for _ in range(2):  # -log(-log(uniform))
        np.negative(np.log(noise, out=noise), out=noise)
    return noise


def uniform_noise(seed: int, output_position: int, number: int) -> float:
    """
    Return a number between 0 and 1, neither included.

    Numbers that are token ids give what the tokens' Gumbel noise is made of: take others.
    """
    word = mix_one(_key(seed, output_position) + (number + 1) * GOLDEN & WORD)
    return ((word >> 12) + 0.5) * 2.0**-52


def _key(seed: int, output_position: int) -> int:
    # Two rounds of a counter generator, each keyed by the one before; a number is the third.
    return mix_one(mix_one(mix_one(seed & WORD) + (output_position + 1) * GOLDEN & WORD))
