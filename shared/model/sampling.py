"""
The one sampler: first token, decode, verification and replay all choose tokens here.

Order of operations on a row of logits (known values that switch a stage off in brackets):

1. refuse a row with a NaN, an infinite maximum or no finite logit
2. logit bias: added; at or below -100 the token is banned
3. penalties: repetition over prompt and output (1), frequency and presence over output (0)
4. constraint (none): ban what no matching answer goes on with (`constraint.py`)
5. ban end-of-sequence and stop tokens before `min_tokens`; under a constraint also end-of-sequence
   with `ignore_eos`, and neither where it would leave no token: the end of a grammar wins
6. temperature up to `GREEDY_TEMPERATURE`: the largest logit, on a tie the lowest id; done
7. divide by the temperature
8. top_k (0 or less, or at least the vocabulary): the k largest, on a tie the lowest ids
9. top_p (1): the fewest largest whose probabilities reach top_p, at least one
10. min_p (0): probability at least min_p times the largest
11. Gumbel-max: the largest of logit + noise, a sample from the softmax of what is left; behind a
    draft, in rejection mode, the draft token or its replacement (`acceptance.py`)

Steps 2 and 3 work in float32, from step 7 on in float64. The noise of a token is a function of
(seed, output position, token id) and of nothing else (`noise.py`); logprobs are those of the
untouched row. What looks at the whole vocabulary stands in `row_passes.py`; here is what happens to
the few tokens that are left.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.shared.errors import ConstraintError, NonFiniteLogitsError
from slipstream.shared.messages.sampling import SamplingParameters, TokenLogprobs
from slipstream.shared.model.acceptance import Distribution, DraftToken, take_or_replace
from slipstream.shared.model.constraint import Matcher
from slipstream.shared.model.noise import gumbel_noise
from slipstream.shared.model.row_passes import (
    Floor,
    Logits,
    Peak,
    RowPasses,
    TokenIds,
    all_down_to,
    row_passes,
)
from slipstream.shared.model.splitmix import WORD

# Below it float32 logits of real models differ by many multiples of the temperature wherever they
# are not tied, so that sampling could only add rounding trouble.
GREEDY_TEMPERATURE = 1e-3

BANNING_BIAS = -100.0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token, with its logprobs if the request wants them."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    is_last: bool = False  # the constraint allows nothing behind it


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
        passes: RowPasses | None = None,
        matcher: Matcher | None = None,
        num_tokens: int | None = None,
    ) -> None:
        """
        `matcher` is that of the constraint, at the start of the output.

        Rows may be longer than `num_tokens`, the number of tokens that there are: what is behind
        pads the matrix, and its logits mean nothing.
        """
        self._num_tokens = num_tokens
        self._eos_token_ids = sorted(set(eos_token_ids))
        self._passes = passes or row_passes()
        self._parameters = parameters
        self._matcher = matcher
        self._num_output_tokens = 0
        self._banned_early = sorted({*self._eos_token_ids, *parameters.stop_token_ids})
        self._output_counts: dict[int, int] = {}
        self._seen: dict[int, None] = {}  # prompt and output, for the repetition penalty
        self._counts_output = bool(parameters.presence_penalty or parameters.frequency_penalty)
        self._penalizes_repetition = parameters.repetition_penalty != 1.0
        if self._penalizes_repetition:
            self._seen = dict.fromkeys(prompt_token_ids)
        for token_id in output_token_ids:
            self.accept(token_id)

    @property
    def num_output_tokens(self) -> int:
        """The output position whose token is chosen next."""
        return self._num_output_tokens

    @property
    def is_complete(self) -> bool:
        """The output matches its constraint, and nothing longer would."""
        return self._matcher is not None and self._matcher.is_complete

    def accept(self, token_id: int) -> None:
        """Go on behind a token that was chosen by these rules. Raises ConstraintError."""
        self._count(token_id)
        self._num_output_tokens += 1
        if self._matcher is not None:
            self._matcher.accept(token_id)

    def sample(
        self, logits: Logits, peak: Peak | None = None, draft: DraftToken | None = None
    ) -> SampledToken:
        """
        Choose the next token from a row [vocab] and advance.

        Raises NonFiniteLogitsError, and ConstraintError when the constraint leaves no token.

        The peak of the row is found here unless the caller has found those of a whole batch. A
        draft of the token is looked at in rejection mode only.
        """
        if self._num_tokens is not None and self._num_tokens < len(logits):
            logits, peak = self._without_padding(logits, self._num_tokens, peak)
        peak = _checked(peak or self._peak(logits))
        parameters = self._parameters
        adjusted, adjusted_peak = self._adjusted(logits), peak
        if adjusted is not logits:
            adjusted_peak = self._checked_adjusted(self._peak(adjusted))
        if parameters.temperature <= GREEDY_TEMPERATURE:
            token_id = adjusted_peak.token_id
        elif draft is not None and parameters.speculation_mode == "rejection":
            target = self._distribution(adjusted, adjusted_peak)
            token_id = take_or_replace(target, draft, parameters.seed, self._num_output_tokens)
        else:
            token_id = self._draw(adjusted, adjusted_peak)
        logprobs = None
        if parameters.num_logprobs is not None:
            logprobs = _logprobs(self._passes, logits, peak, token_id, parameters.num_logprobs)
        self.accept(token_id)
        return SampledToken(token_id, logprobs, self.is_complete)

    @staticmethod
    def _without_padding(
        logits: Logits, num_tokens: int, peak: Peak | None
    ) -> tuple[Logits, Peak | None]:
        unpadded = logits.copy()
        unpadded[num_tokens:] = -np.inf
        is_token = peak is not None and peak.token_id < num_tokens
        return unpadded, peak if is_token else None

    def _peak(self, logits: Logits) -> Peak:
        return self._passes.peaks(logits[np.newaxis])[0]

    def _checked_adjusted(self, peak: Peak) -> Peak:
        if self._matcher is not None and peak.logit == -math.inf:
            raise ConstraintError(
                f"no token is left at output position {self._num_output_tokens}: logit_bias bans"
                " all that the constraint allows"
            )
        return _checked(peak)

    def _count(self, token_id: int) -> None:
        if self._counts_output:
            self._output_counts[token_id] = self._output_counts.get(token_id, 0) + 1
        if self._penalizes_repetition:
            self._seen[token_id] = None

    def _adjusted(self, logits: Logits) -> Logits:
        """Return the row after bias, penalties and bans; the row itself if there are none."""
        bias, banned = self._parameters.logit_bias, self._banned()
        is_free = self._matcher is None and not banned
        if is_free and not (bias or self._seen or self._output_counts):
            return logits
        adjusted = logits.copy()
        for token_id, value in bias.items():
            adjusted[token_id] += -np.inf if value <= BANNING_BIAS else value
        self._penalize(adjusted)
        if self._matcher is not None:
            adjusted[~self._matcher.allowed()] = -np.inf
        if banned:
            self._ban(adjusted, banned)
        return adjusted

    def _ban(self, logits: Logits, token_ids: list[int]) -> None:
        kept = logits[token_ids]
        logits[token_ids] = -np.inf
        if self._matcher is not None and self._peak(logits).logit == -math.inf:
            logits[token_ids] = kept

    def _banned(self) -> list[int]:
        """Return the tokens that would end the answer, while it may not end."""
        if self._num_output_tokens < self._parameters.min_tokens:
            return self._banned_early
        is_going_on = self._matcher is not None and self._parameters.ignore_eos
        return self._eos_token_ids if is_going_on else []

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

    def _draw(self, logits: Logits, peak: Peak) -> int:
        parameters = self._parameters
        if self._has_top_k(logits):
            candidates = self._of_top_k(logits)
        else:
            candidates = self._contenders(logits, peak)
        if len(candidates) == 1:
            return int(candidates[0])
        scores = logits[candidates].astype(np.float64) / parameters.temperature
        noise = gumbel_noise(parameters.seed, self._num_output_tokens, candidates)
        return int(candidates[(scores + noise).argmax()])

    def _distribution(self, logits: Logits, peak: Peak) -> Distribution:
        """Return what `_draw` draws from."""
        if self._has_top_k(logits):
            token_ids = np.sort(self._of_top_k(logits))
        else:
            token_ids = all_down_to(logits, self._floor(logits, peak))
        scores = logits[token_ids].astype(np.float64) / self._parameters.temperature
        weights = np.exp(scores - peak.logit / self._parameters.temperature)
        return Distribution(token_ids, weights / weights.sum())

    def _has_top_k(self, logits: Logits) -> bool:
        return 0 < self._parameters.top_k < len(logits)

    def _of_top_k(self, logits: Logits) -> TokenIds:
        """Return what top_k, top_p and min_p leave, largest first."""
        ranked = self._passes.largest(logits, self._parameters.top_k)
        return _of_ranked(ranked, logits, self._parameters)

    def _contenders(self, logits: Logits, peak: Peak) -> TokenIds:
        """Return those that top_p and min_p leave and that can win."""
        temperature, seed = self._parameters.temperature, self._parameters.seed & WORD
        position, floor = self._num_output_tokens, self._floor(logits, peak)
        return self._passes.contenders(logits, peak, temperature, seed, position, floor)

    def _floor(self, logits: Logits, peak: Peak) -> Floor:
        """Return the last token that top_p and min_p leave."""
        parameters, passes = self._parameters, self._passes
        floors = [Floor(-math.inf, len(logits))]
        if parameters.top_p < 1.0:
            floors.append(passes.nucleus(logits, peak, parameters.temperature, parameters.top_p))
        if parameters.min_p > 0.0:
            floors.append(Floor(_lowest_of_min_p(peak, parameters), len(logits)))
        return max(floors, key=lambda floor: (floor.logit, -floor.token_id))


def raw_logprobs(
    logits: Logits, token_id: int, num_top: int, peak: Peak | None = None
) -> TokenLogprobs:
    """
    Return the log-softmax of the untouched row at a token and at the `num_top` best ones.

    The peak of the row is found here unless the caller knows it. Raises NonFiniteLogitsError.
    """
    passes = row_passes()
    peak = _checked(peak or passes.peaks(logits[np.newaxis])[0])
    return _logprobs(passes, logits, peak, token_id, num_top)


def _of_ranked(ranked: TokenIds, logits: Logits, parameters: SamplingParameters) -> TokenIds:
    """Return what top_p and min_p leave of those that top_k left, largest first."""
    scores = logits[ranked].astype(np.float64) / parameters.temperature
    num_kept = len(ranked)
    if parameters.top_p < 1.0:
        weights = np.exp(scores - scores[0])
        wanted = parameters.top_p * weights.sum()
        num_kept = int(np.searchsorted(np.cumsum(weights), wanted)) + 1
    if parameters.min_p > 0.0:
        is_likely = scores >= scores[0] + np.log(parameters.min_p)
        num_kept = min(num_kept, int(np.count_nonzero(is_likely)))
    return ranked[:num_kept]


def _lowest_of_min_p(peak: Peak, parameters: SamplingParameters) -> float:
    """Return the lowest logit whose score is within log(min_p) of the largest."""
    temperature = parameters.temperature
    lowest_score = peak.logit / temperature + np.log(parameters.min_p)
    nearest = np.float32(lowest_score * temperature)
    below, above = (np.nextafter(nearest, np.float32(end)) for end in (-np.inf, np.inf))
    return next(
        logit
        for logit in map(float, (below, nearest, above))
        if logit / temperature >= lowest_score
    )


def _logprobs(
    passes: RowPasses, logits: Logits, peak: Peak, token_id: int, num_top: int
) -> TokenLogprobs:
    log_total = passes.log_total(logits, peak)
    top = passes.largest(logits, num_top)
    top_logits = logits[top]
    # A masked token has no logprob that JSON could carry.
    num_top = int(np.count_nonzero(top_logits > -np.inf))
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(logits[token_id]) - log_total,
        top_token_ids=top[:num_top].tolist(),
        top_logprobs=(top_logits[:num_top].astype(np.float64) - log_total).tolist(),
    )


def _checked(peak: Peak) -> Peak:
    # The peak of a row with a NaN is NaN, of one that is all masked it is -inf.
    if not math.isfinite(peak.logit):
        raise NonFiniteLogitsError(f"a row of logits has the maximum {peak.logit}")
    return peak
