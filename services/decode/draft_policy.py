"""What drafting has brought and cost so far, and so how much of it the next step takes on."""

from collections.abc import Sequence

from slipstream.services.decode.batch import Part, max_num_drafts
from slipstream.services.decode.draft_lengths import Acceptance, Candidate, worthwhile
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.verify_cost import Shape, VerifyCost

_FIRST_PRIOR = 0.5
_KEPT_OF_ALL = 0.998  # for each token tested, of what newcomers are expected to accept
_PROBE_STEPS = 64

# A sequence and the most draft tokens that there are, or could be, for it.
Offer = tuple[DecodeSequence, int]


class DraftPolicy:
    """Owns the acceptance of each sequence, and the cost of verifying."""

    def __init__(self, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._of_all = Acceptance(_FIRST_PRIOR, _KEPT_OF_ALL)
        self._cost = VerifyCost()

    def begin(self, sequence: DecodeSequence) -> None:
        """Expect of a new sequence what others did."""
        sequence.drafts.acceptance = Acceptance(self._of_all.rate)

    def max_num_tokens(self, sequence: DecodeSequence) -> int:
        """Return how many draft tokens are of any use to it."""
        return max_num_drafts(sequence, self._max_num_tokens)

    def lengths(
        self,
        offers: Sequence[Offer],
        streams: Sequence[DecodeSequence],
        *,
        ask_s: float = 0.0,
    ) -> list[int]:
        """
        Return how many draft tokens of each offer the next step of `streams` verifies.

        As many as there are where the request says how many it wants, else as many as pay. Now and
        then one that should not pay: else a bad stretch, or a cost that was taken for too high,
        would be the last that was seen.
        """
        fixed = [num_tokens if _is_fixed(sequence) else 0 for sequence, num_tokens in offers]
        candidates = [
            Candidate(_acceptance(sequence).rate, 0 if _is_fixed(sequence) else num_tokens)
            for sequence, num_tokens in offers
        ]
        num_context_tokens = sum(len(each.token_ids) for each in streams)
        step_s = self._cost.of_step(Shape(len(streams), sum(fixed), num_context_tokens))
        found = worthwhile(candidates, len(streams), step_s, self._cost.of_draft, ask_s)
        lengths = [one or other for one, other in zip(fixed, found, strict=True)]
        for idx, (sequence, _) in enumerate(offers):
            if lengths[idx]:
                continue
            sequence.drafts.num_steps_unused += 1
            if sequence.drafts.num_steps_unused % _PROBE_STEPS == 0:
                lengths[idx] = 1
        return lengths

    def tested(self, sequence: DecodeSequence, num_tested: int, num_accepted: int) -> None:
        """Learn from draft tokens that met the target's own."""
        _acceptance(sequence).saw(num_tested, num_accepted)
        self._of_all.saw(num_tested, num_accepted)

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


def _acceptance(sequence: DecodeSequence) -> Acceptance:
    assert sequence.drafts.acceptance is not None, "begun before the first step"
    return sequence.drafts.acceptance
