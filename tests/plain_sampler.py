"""
The sampler in the plainest way, from what is documented alone: whole rows, in float64.

Fields are those of a request; absent ones mean what they mean there.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Fields = Mapping[str, Any]  # Any: fields have several types
Row = npt.NDArray[np.floating[Any]]  # Any: float32 or float64
Mask = npt.NDArray[np.bool_]
Chances = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

_GREEDY_TEMPERATURE = 1e-3


def choose(
    row: Row,
    fields: Fields,
    seed: int,
    prompt: Sequence[int],
    output: Sequence[int],
    end_ids: Collection[int],
    allowed: Mask | None = None,
) -> int:
    """Return the token that comes behind prompt and output; `allowed` is a constraint's."""
    chances = distribution(row, fields, prompt, output, end_ids, allowed)
    assert chances.any(), "no token is left"
    with np.errstate(divide="ignore"):
        return int((np.log(chances) + gumbel_noise(seed, len(output), len(row))).argmax())


def distribution(
    row: Row,
    fields: Fields,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    end_ids: Collection[int] = (),
    allowed: Mask | None = None,
) -> Chances:
    """Return the probability of each token; nothing but zeros where no token is left."""
    logits = _adjusted(row, fields, prompt, output)
    if allowed is not None:
        logits[~allowed] = -np.inf
    logits = _without_early_ends(logits, fields, len(output), end_ids, allowed)
    best = int(logits.argmax())  # the lowest id on a tie
    if logits[best] == -np.inf:
        return np.zeros(len(row))
    temperature = fields.get("temperature", 1.0)
    if temperature <= _GREEDY_TEMPERATURE:
        chances: Chances = np.zeros(len(row))
        chances[best] = 1.0
        return chances
    weights: Chances = np.exp((logits - logits[best]) / temperature)
    return _truncated(weights, logits, fields)


def gumbel_noise(seed: int, position: int, num_tokens: int) -> Chances:
    """Return the noise of each token at an output position: a word of 64 bits, made a Gumbel."""
    of_position = int(_words(seed % 2**64, np.array([position]))[0])
    words = _words(of_position, np.arange(num_tokens))
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52
    noise: Chances = -np.log(-np.log(uniform))
    return noise


def _adjusted(row: Row, fields: Fields, prompt: Sequence[int], output: Sequence[int]) -> Chances:
    """Return the logits after bias, then repetition, then frequency and presence."""
    logits = row.astype(np.float64)
    for key, bias in fields.get("logit_bias", {}).items():
        logits[int(key)] += bias if bias > -100 else -np.inf
    penalty = fields.get("repetition_penalty", 1.0)
    for token_id in {*prompt, *output}:
        logit = logits[token_id]
        logits[token_id] = logit / penalty if logit > 0 else logit * penalty
    for token_id, count in Counter(output).items():
        logits[token_id] -= fields.get("frequency_penalty", 0.0) * count
        logits[token_id] -= fields.get("presence_penalty", 0.0)
    return logits


def _without_early_ends(
    logits: Chances,
    fields: Fields,
    num_output_tokens: int,
    end_ids: Collection[int],
    allowed: Mask | None,
) -> Chances:
    """Ban what would end the answer too early; the end of a constraint wins over that."""
    banned: set[int] = set()
    if allowed is not None and fields.get("ignore_eos", False):
        banned |= {*end_ids}
    if num_output_tokens < fields.get("min_tokens", 0):
        banned |= {*end_ids, *fields.get("stop_token_ids", ())}
    without = logits.copy()
    without[list(banned)] = -np.inf
    if allowed is not None and without.max() == -np.inf:
        return logits
    return without


def _truncated(weights: Chances, logits: Chances, fields: Fields) -> Chances:
    """Return the probabilities of what top_k, top_p and min_p leave, in this order."""
    top_k, top_p = fields.get("top_k", 0), fields.get("top_p", 1.0)
    if 0 < top_k < len(weights):
        weights[_ranked(logits)[top_k:]] = 0.0
    if top_p < 1.0:
        ranked = _ranked(logits)
        is_reached = np.cumsum(weights[ranked]) >= top_p * weights.sum()
        num_kept = int(is_reached.argmax()) + 1 if is_reached.any() else len(ranked)
        weights[ranked[num_kept:]] = 0.0
    weights[weights < fields.get("min_p", 0.0) * weights.max()] = 0.0
    weights /= weights.sum()
    return weights


def _ranked(logits: Chances) -> npt.NDArray[np.int64]:
    """Return all ids, largest logit first, on a tie the lowest id first."""
    return np.argsort(-logits, kind="stable")


def _words(key: int, numbers: npt.NDArray[np.int64]) -> Words:
    """Return some words, by number, of the splitmix64 that starts at the scrambled key."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    start = _scrambled(np.array([key], np.uint64))
    return _scrambled(start + golden * (numbers.astype(np.uint64) + np.uint64(1)))


def _scrambled(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
