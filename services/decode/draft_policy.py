"""What drafting has brought and cost so far, and so how much of it the next step takes on."""

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.services.decode.batch import Part, max_num_drafts
from slipstream.services.decode.draft_lengths import Acceptances, Candidate, worthwhile
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.verify_cost import Shape, VerifyCost
from slipstream.shared.worker.report_book import Attempt

_KEPT_OF_ALL = 0.998  # for each token tested, of what newcomers are expected to accept
_PROBE_STEPS = 64


class Offer(NamedTuple):
    """The most draft tokens that there are, or could be, for a sequence."""

    sequence: DecodeSequence
    max_num_tokens: int
    num_matched: int = 0  # tokens that agree with what the draft is copied from, where it is


# The chance of each token of an offer, to be reached and accepted.
Chances = Sequence[float]


class DraftPolicy:
    """Owns the acceptance of each sequence, and the cost of verifying."""

    def __init__(self, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._of_all = Acceptances(_KEPT_OF_ALL)
        self._cost = VerifyCost()
        self._num_matched: dict[Attempt, int] = {}  # of what was offered for this step

    def begin(self, sequence: DecodeSequence) -> None:
        """Expect of a new sequence what others did."""
        sequence.drafts.acceptances = Acceptances(like=self._of_all)

    def max_num_tokens(self, sequence: DecodeSequence) -> int:
        """Return how many draft tokens are of any use to it."""
        return max_num_drafts(sequence, self._max_num_tokens)

    def lengths(
        self,
        offers: Sequence[Offer],
        streams: Sequence[DecodeSequence],
        *,
        ask_s: float = 0.0,
        draft_s: float = 0.0,
        chances: Sequence[Chances] | None = None,
    ) -> list[int]:
        """
        Return how many draft tokens of each offer the next step of `streams` verifies.

        As many as there are where the request says how many it wants, else as many as pay. Now and
        then one that should not pay: else a bad stretch, or a cost that was taken for too high,
        would be the last that was seen. Asking takes `ask_s`, and each token that is still to be
        made `draft_s`; `chances` are those of each offer, if whoever made it can tell.
        """
        self._num_matched = {each.sequence.attempt: each.num_matched for each in offers}
        fixed = [each.max_num_tokens if _is_fixed(each.sequence) else 0 for each in offers]
        candidates = [
            Candidate(
                _acceptances(each.sequence).behind(each.num_matched),
                0 if _is_fixed(each.sequence) else each.max_num_tokens,
                known,
            )
            for each, known in zip(
                offers, chances if chances is not None else [()] * len(offers), strict=True
            )
        ]
        num_context_tokens = sum(len(each.token_ids) for each in streams)
        step_s = self._cost.of_step(Shape(len(streams), sum(fixed), num_context_tokens))
        token_s = self._cost.of_draft + draft_s
        found = worthwhile(candidates, len(streams), step_s, token_s, ask_s)
        lengths = [one or other for one, other in zip(fixed, found, strict=True)]
        for idx, offer in enumerate(offers):
            if lengths[idx]:
                continue
            drafts = offer.sequence.drafts
            drafts.num_steps_unused += 1
            if drafts.num_steps_unused % _PROBE_STEPS == 0:
                lengths[idx] = 1
        return lengths

    def least_chance(self, streams: Sequence[DecodeSequence], draft_s: float) -> float:
        """Return the chance behind which no token of the next step is worth making."""
        num_context_tokens = sum(len(each.token_ids) for each in streams)
        step_s = self._cost.of_step(Shape(len(streams), 0, num_context_tokens))
        return len(streams) * (self._cost.of_draft + draft_s) / step_s

    def tested(self, sequence: DecodeSequence, num_tested: int, num_accepted: int) -> None:
        """Learn from draft tokens that met the target's own."""
        num_matched = self._num_matched.get(sequence.attempt, 0)
        _acceptances(sequence).saw(num_matched, num_tested, num_accepted)
        self._of_all.saw(num_matched, num_tested, num_accepted)

    def stepped(self, parts: Sequence[Part], seconds: float) -> None:
        """Learn what was accepted and, of a step without prompts, how long it took."""
        num_drafts = 0
        for part in parts:
            num_proposed, num_tested, num_accepted = part.num_drafts
            num_drafts += num_proposed
            if num_tested:
                self.tested(part.sequence, num_tested, num_accepted)
        if all(part.is_stream and part.error is None for part in parts):
            context = sum(part.rows.context_len for part in parts) - num_drafts
            self._cost.saw(Shape(len(parts), num_drafts, context), seconds)


def _is_fixed(sequence: DecodeSequence) -> bool:
    return sequence.job.sampling.num_speculative_tokens is not None


def _acceptances(sequence: DecodeSequence) -> Acceptances:
    assert sequence.drafts.acceptances is not None, "begun before the first step"
    return sequence.drafts.acceptances
