"""Ways to sample a row, and the distribution that each stands for."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.shared.messages.sampling import SamplingParameters, SpeculationMode
from slipstream.shared.model.constraint import Mask
from slipstream.shared.model.sampling import Sampler
from tests.plain_sampler import Chances, distribution

Row = npt.NDArray[np.float32]
Fields = Mapping[str, Any]  # Any: fields have several types

SMALL, LARGE = 64, 49_152  # vocabularies

PROMPT = [3, 3, 15, 11]
OUTPUT = [2, 2, 13, 2, 11, 5]
EOS = 17
# Fills an output up to any length. It is banned, so that how often it came changes nothing.
FILLER = 63

CASES: dict[str, Fields] = {
    "as it is": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 8},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "top_k and top_p": {"top_k": 12, "top_p": 0.8, "temperature": 1.2},
    "top_p and min_p": {"top_p": 0.9, "min_p": 0.06, "temperature": 1.3},
    "all three": {"top_k": 20, "top_p": 0.95, "min_p": 0.03, "temperature": 1.5},
    "repetition": {"repetition_penalty": 1.4, "logit_bias": {FILLER: -100.0}},
    "presence": {"presence_penalty": 1.0, "logit_bias": {FILLER: -100.0}},
    "frequency": {"frequency_penalty": 0.5, "logit_bias": {FILLER: -100.0}},
    "bias": {"logit_bias": {4: 2.0, 2: -1.5, 11: -100.0}},
    "bias and repetition": {
        "repetition_penalty": 0.8,
        "logit_bias": {2: -1.5, 13: 1.0, FILLER: -100.0},
    },
    "min_tokens": {"min_tokens": 10**6, "stop_token_ids": (15, 7), "logit_bias": {EOS: 2.0}},
    "constraint": {"temperature": 1.2},
    "constraint and top_p": {"top_p": 0.7},
}


class _Same:
    """A constraint that always allows the same tokens."""

    is_complete = False

    def __init__(self, mask: Mask) -> None:
        self._mask = mask

    def allowed(self) -> Mask:
        return self._mask

    def accept(self, token_id: int) -> None:
        assert self._mask[token_id], "not allowed"


@cache
def matcher_of(case: str, size: int) -> _Same | None:
    return _Same(np.arange(size) % 3 == 0) if case.startswith("constraint") else None


@cache
def row_of(size: int) -> Row:
    """
    Return logits of a small vocabulary, or of one as large and as peaked as a real one.

    Low ids are likely: what is done to some of them counts. Their logits have both signs.
    """
    random = np.random.default_rng(4)
    if size == SMALL:
        return (random.normal(0, 1.6, size) - np.arange(size) / 12 - 1).astype(np.float32)
    logits = 2 - 1.4 * np.log(np.arange(1, size + 1)) + random.normal(0, 0.1, size)
    logits[64:] = random.permutation(logits[64:])
    return logits.astype(np.float32)


def sampler_of(
    case: str,
    size: int,
    seed: int,
    num_fillers: int = 0,
    speculation_mode: SpeculationMode = "exact",
) -> Sampler:
    return Sampler(
        SamplingParameters(seed=seed, speculation_mode=speculation_mode, **CASES[case]),
        PROMPT,
        [*OUTPUT, *[FILLER] * num_fillers] if matcher_of(case, size) is None else (),
        eos_token_ids=[EOS],
        matcher=matcher_of(case, size),
    )


def distribution_of(case: str, size: int, **wrong: object) -> Chances:
    """Return the right distribution of a case, or one with something wrong."""
    matcher = matcher_of(case, size)
    what: dict[str, Any] = {  # Any: of several types
        "fields": CASES[case],
        "prompt": PROMPT,
        "output": OUTPUT if matcher is None else (),
        "end_ids": [EOS],
        "allowed": None if matcher is None else matcher.allowed(),
    }
    return distribution(row_of(size), **{**what, **wrong})
