"""Prompt lookup within the decode worker: no message, and every guess is checked for nothing."""

from collections.abc import Iterator, Sequence

from slipstream.services.decode.batch import Part, Proposals
from slipstream.services.decode.draft_policy import DraftPolicy, Offer
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.worker.activities import Activity
from slipstream.shared.worker.ngram import MAX_NGRAM, MIN_NGRAM, NgramIndex
from slipstream.shared.worker.report_book import Attempt

# Tokens of a prompt that are indexed between two steps: about a millisecond.
_MAX_NEW_TOKENS = 512


class LocalDrafts:
    """
    Keeps an index of each sequence's n-grams.

    What is looked up and not verified meets the target's next token all the same, so that
    acceptance is known without paying for it.
    """

    activity: Activity = "sampling"

    def __init__(self, policy: DraftPolicy) -> None:
        self._policy = policy
        self._indexes: dict[Attempt, NgramIndex] = {}
        self._unverified: dict[Attempt, int] = {}  # first tokens of what this step leaves out

    async def open(self, sequence: DecodeSequence) -> None:
        """Begin with a sequence."""
        if self._policy.max_num_tokens(sequence) == 0:
            return
        self._policy.begin(sequence)
        self._indexes[sequence.attempt] = NgramIndex(MIN_NGRAM, MAX_NGRAM)

    async def close(self, sequence: DecodeSequence) -> None:
        """Forget a sequence."""
        self._indexes.pop(sequence.attempt, None)

    async def propose(self, sequences: Sequence[DecodeSequence]) -> Proposals:
        """Return what the next step should verify."""
        streams = [each for each in sequences if each.is_decoding]
        found = [(offer, tokens) for each in streams for offer, tokens in self._look_up(each)]
        lengths = self._policy.lengths([offer for offer, _ in found], streams)
        proposals: dict[Attempt, list[int]] = {}
        self._unverified = {}
        for (offer, tokens), length in zip(found, lengths, strict=True):
            if length:
                proposals[offer.sequence.attempt] = tokens[:length]
            else:
                self._unverified[offer.sequence.attempt] = tokens[0]
        return proposals

    async def shut(self) -> None:
        """Nothing is held here that outlives the process."""

    def stepped(self, parts: Sequence[Part], seconds: float) -> None:
        """Learn from a step, whose results have been taken over."""
        for part in parts:
            guess = self._unverified.get(part.sequence.attempt)
            if guess is not None and part.sampled:
                is_right = part.sampled[0].token_id == guess
                self._policy.tested(part.sequence, 1, int(is_right))
        self._unverified = {}
        self._policy.stepped(parts, seconds)

    def _look_up(self, sequence: DecodeSequence) -> Iterator[tuple[Offer, list[int]]]:
        """Yield what there is for a sequence, if anything."""
        index = self._indexes.get(sequence.attempt)
        if index is None:
            return
        first = index.num_tokens
        index.extend(sequence.token_ids[first : first + _MAX_NEW_TOKENS])
        max_num_tokens = self._policy.max_num_tokens(sequence)
        if index.num_tokens < len(sequence.token_ids) or max_num_tokens == 0:
            return
        match = index.find()
        if match is not None:
            tokens = index.continued(match, max_num_tokens)
            yield Offer(sequence, max_num_tokens, match.num_matched), tokens
