"""
The one sampler: first token, decode, verification and replay all choose tokens here.

Order of operations on a row of logits (known values that switch a stage off in brackets):

1. refuse a row with a NaN, an infinite maximum or no finite logit
2. logit bias: added; at or below -100 the token is banned
3. penalties: repetition over prompt and output (1), frequency and presence over output (0)
4. ban end-of-sequence and stop tokens before `min_tokens`
5. temperature up to `GREEDY_TEMPERATURE`: the largest logit, on a tie the lowest id; done
6. divide by the temperature
7. top_k (0 or less, or at least the vocabulary): the k largest, on a tie the lowest ids
8. top_p (1): the fewest largest whose probabilities reach top_p, at least one
9. min_p (0): probability at least min_p times the largest
10. Gumbel-max: the largest of logit + noise, a sample from the softmax of what is left

Steps 2 and 3 work in float32, from step 6 on in float64. The noise of a token is a function of
(seed, output position, token id) and of nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.shared.errors import NonFiniteLogitsError
from slipstream.shared.messages.sampling import SamplingParameters, TokenLogprobs
from slipstream.shared.model.splitmix import GOLDEN, mix

Logits = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]
TokenIds = npt.NDArray[np.int64]

# Below it float32 logits of real models differ by many multiples of the temperature wherever they
# are not tied, so that sampling could only add rounding trouble.
GREEDY_TEMPERATURE = 1e-3

BANNING_BIAS = -100.0

# How many of the largest probabilities are looked at first for top_p; most requests need fewer,
# and a partition costs a tenth of a sort over a vocabulary of 49,152.
_FIRST_NUCLEUS = 256

_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token, with its logprobs if the request wants them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Sampler:
    """
    Chooses the tokens of one sequence, one output position after another.

    Made anew from the tokens so far, it goes on exactly where another one stopped: after a
    hand-over, a preemption or a crash.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int] = (),
        *,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self.eos_token_ids = tuple(eos_token_ids)
        self._parameters = parameters
        self._num_output_tokens = len(output_token_ids)
        self._banned_early = sorted({*self.eos_token_ids, *parameters.stop_token_ids})
        self._output_counts: dict[int, int] = {}
        self._seen: dict[int, None] = {}  # prompt and output, for the repetition penalty
        self._counts_output = bool(parameters.presence_penalty or parameters.frequency_penalty)
        self._penalizes_repetition = parameters.repetition_penalty != 1.0
        if self._penalizes_repetition:
            self._seen = dict.fromkeys(prompt_token_ids)
        for token_id in output_token_ids:
            self._count(token_id)

    @property
    def num_output_tokens(self) -> int:
        """The output position whose token is chosen next."""
        return self._num_output_tokens

    def sample(self, logits: Logits) -> SampledToken:
        """Choose the next token from a row [vocab] and advance. Raises NonFiniteLogitsError."""
        _check_finite(logits)
        parameters = self._parameters
        adjusted = self._adjusted(logits)
        if parameters.temperature <= GREEDY_TEMPERATURE:
            token_id = int(adjusted.argmax())
        else:
            token_id = _draw(adjusted, parameters, self._num_output_tokens)
        logprobs = None
        if parameters.num_logprobs is not None:
            logprobs = raw_logprobs(logits, token_id, parameters.num_logprobs)
        self._count(token_id)
        self._num_output_tokens += 1
        return SampledToken(token_id, logprobs)

    def _count(self, token_id: int) -> None:
        if self._counts_output:
            self._output_counts[token_id] = self._output_counts.get(token_id, 0) + 1
        if self._penalizes_repetition:
            self._seen[token_id] = None

    def _adjusted(self, logits: Logits) -> Logits:
        """Return the row after bias, penalties and bans; the row itself if there are none."""
        bias = self._parameters.logit_bias
        is_early = self._num_output_tokens < self._parameters.min_tokens and self._banned_early
        if not (bias or self._seen or self._output_counts or is_early):
            return logits
        adjusted = logits.copy()
        for token_id, value in bias.items():
            adjusted[token_id] += -np.inf if value <= BANNING_BIAS else value
        self._penalize(adjusted)
        if is_early:
            adjusted[self._banned_early] = -np.inf
        _check_finite(adjusted)
        return adjusted

    def _penalize(self, logits: Logits) -> None:
        if self._seen:
            seen = np.fromiter(self._seen, np.int64, len(self._seen))
            penalty = np.float32(self._parameters.repetition_penalty)
            chosen = logits[seen]
            logits[seen] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
        if self._output_counts:
            num_counted = len(self._output_counts)
            counted = np.fromiter(self._output_counts, np.int64, num_counted)
            counts = np.fromiter(self._output_counts.values(), np.float32, num_counted)
            logits[counted] -= counts * np.float32(self._parameters.frequency_penalty)
            logits[counted] -= np.float32(self._parameters.presence_penalty)


def raw_logprobs(logits: Logits, token_id: int, num_top: int) -> TokenLogprobs:
    """Return the log-softmax of the untouched row at a token and at the `num_top` best ones."""
    _check_finite(logits)
    wide = logits.astype(np.float64)
    maximum = wide.max()
    log_total = maximum + np.log(np.exp(wide - maximum).sum())
    top = _largest(logits, num_top)
    top = top[logits[top] > -np.inf]  # a masked token has no logprob that JSON could carry
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(wide[token_id] - log_total),
        top_token_ids=top.tolist(),
        top_logprobs=(wide[top] - log_total).tolist(),
    )


def gumbel_noise(seed: int, output_position: int, token_ids: TokenIds) -> Scores:
    """Return each token's standard Gumbel noise at an output position."""
    # Three rounds of a counter generator, each keyed by the one before: seed, position, token.
    key = np.array([seed & _WORD], np.uint64)
    for counters in (np.array([output_position], np.uint64), token_ids.astype(np.uint64)):
        key = mix(mix(key) + (counters + np.uint64(1)) * np.uint64(GOLDEN))
    # 52 bits and a half: never 0 or 1, where the logarithms end.
    noise = (key >> np.uint64(12)).astype(np.float64)
    noise += 0.5
    noise *= 2.0**-52
    for _ in range(2):  # -log(-log(uniform))
        np.negative(np.log(noise, out=noise), out=noise)
    return noise


def _draw(logits: Logits, parameters: SamplingParameters, output_position: int) -> int:
    candidates = _candidates(logits, parameters)
    scores = logits[candidates].astype(np.float64) / parameters.temperature
    noise = gumbel_noise(parameters.seed, output_position, candidates)
    return int(candidates[(scores + noise).argmax()])


def _candidates(logits: Logits, parameters: SamplingParameters) -> TokenIds:
    """Return the ids that top_k, top_p and min_p leave."""
    if 0 < parameters.top_k < len(logits):
        kept = _largest(logits, parameters.top_k)
    else:
        kept = np.arange(len(logits))
    if parameters.top_p < 1.0:
        kept = _nucleus(logits, kept, parameters)
    if parameters.min_p > 0.0:
        scores = logits[kept].astype(np.float64) / parameters.temperature
        kept = kept[scores >= scores.max() + np.log(parameters.min_p)]
    return kept


def _nucleus(logits: Logits, kept: TokenIds, parameters: SamplingParameters) -> TokenIds:
    """Return the fewest of the kept ids, largest first, whose probabilities reach top_p."""
    scores = logits[kept].astype(np.float64) / parameters.temperature
    weights = np.exp(scores - scores.max())
    wanted = parameters.top_p * weights.sum()
    num_ranked = _FIRST_NUCLEUS
    while True:
        ranked = _largest(scores, num_ranked)
        reached = np.cumsum(weights[ranked])
        if reached[-1] >= wanted or num_ranked >= len(kept):
            return kept[ranked[: int(np.searchsorted(reached, wanted)) + 1]]
        num_ranked *= 8


def _largest(values: Logits | Scores, num_largest: int) -> TokenIds:
    """Return the indices of the largest values, largest first, on a tie the lowest index first."""
    if num_largest <= 0:
        return np.empty(0, np.int64)
    if num_largest < len(values):
        threshold = np.partition(values, -num_largest)[-num_largest]
        indices = np.flatnonzero(values >= threshold)
    else:
        indices = np.arange(len(values))
    # Stable over ascending indices, which settles ties; they may be more than asked for.
    return indices[np.argsort(-values[indices], kind="stable")][:num_largest]


def _check_finite(logits: Logits) -> None:
    # The maximum of a row with a NaN is NaN, of an empty mask it is -inf.
    maximum = logits.max()
    if not np.isfinite(maximum):
        raise NonFiniteLogitsError(f"a row of logits has the maximum {maximum}")
