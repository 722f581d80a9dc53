"""
Drafts by a model, and by n-grams where these have been right at least as often.

An n-gram costs nothing to look up, so that each sequence's are judged in every step, used or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.shared.drafting.engine import DraftEngine, Want
from slipstream.shared.drafting.rate import Acceptance
from slipstream.shared.drafting.sequence import DraftSequence
from slipstream.shared.messages.draft import DraftSampling
from slipstream.shared.worker.ngram import MAX_NGRAM, MIN_NGRAM, NgramIndex

# What the first ones are expected to accept of either: a chat repeats little of what was said.
_NGRAM_PRIOR, _MODEL_PRIOR = 0.4, 0.6
_KEPT_OF_ALL = 0.98  # for each token tested, of what newcomers are expected to accept
# And so much at least: requests differ, and with biases or penalties most drafts are wrong.
_LEAST_PRIOR = 0.4
# Tokens of a prompt that are indexed at once: about a millisecond.
_MAX_INDEXED = 512
# Rows of prompts that are computed beside a round of proposals.
_MAX_CAUGHT_UP = 64


@dataclass(eq=False)
class Followed:
    """A sequence, and what has come of drafts for it."""

    sequence: DraftSequence
    index: NgramIndex | None = None
    of_ngrams: Acceptance = field(default_factory=lambda: Acceptance(_NGRAM_PRIOR))
    of_model: Acceptance = field(default_factory=lambda: Acceptance(_MODEL_PRIOR))  # lately
    guess: int | None = None  # the first token that the n-grams would propose

    @property
    def num_tokens(self) -> int:
        """Tokens known."""
        return len(self.sequence.token_ids)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much is wanted for a sequence; see `engine.Want`."""

    followed: Followed
    max_num_tokens: int
    least_chance: float = 0.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens, and the chance of each to be reached and accepted."""

    token_ids: Sequence[int] = ()
    chances: Sequence[float] = ()


class Drafter:
    """Puts both together; all of it runs on one thread, which computes."""

    def __init__(self, engine: DraftEngine, *, takes_ngrams: bool) -> None:
        self._engine = engine
        self._takes_ngrams = takes_ngrams
        self._of_all = Acceptance(_MODEL_PRIOR, _KEPT_OF_ALL)

    def follow(self, num_prompt_tokens: int, sampling: DraftSampling | None) -> Followed:
        """Begin with a sequence, whose tokens come with `extend`."""
        index = NgramIndex(MIN_NGRAM, MAX_NGRAM) if self._takes_ngrams else None
        sequence = DraftSequence(sampling, num_prompt_tokens)
        return Followed(sequence, index, of_model=Acceptance(max(self._of_all.rate, _LEAST_PRIOR)))

    def extend(self, followed: Followed, token_ids: Sequence[int]) -> None:
        """Append the target's tokens, and learn from them what its drafts were worth."""
        if not token_ids:
            return
        if followed.guess is not None:
            followed.of_ngrams.saw(1, int(token_ids[0] == followed.guess))
            followed.guess = None
        judged = self._engine.extend(followed.sequence, token_ids)
        for acceptance in (followed.of_model, self._of_all):
            acceptance.saw(len(judged), sum(judged))

    def forget(self, followed: Followed) -> None:
        """Let a sequence go."""
        self._engine.forget(followed.sequence)

    def look_up(self, followed: Followed, max_num_tokens: int) -> Proposal | None:
        """Return what the n-grams propose; None where the model is to be asked."""
        if followed.index is None:
            return None
        first = followed.index.num_tokens
        followed.index.extend(followed.sequence.token_ids[first : first + _MAX_INDEXED])
        if followed.index.num_tokens < followed.num_tokens:
            return None
        token_ids = followed.index.propose(max_num_tokens)
        if not token_ids:
            return None
        followed.guess = token_ids[0]
        rate = followed.of_ngrams.rate
        if rate < followed.of_model.rate:
            return None
        return Proposal(token_ids, [rate ** (idx + 1) for idx in range(len(token_ids))])

    def catch_up(self, followed: Sequence[Followed]) -> bool:
        """Compute a piece of the prompts that the model has not seen; tell if there was any."""
        return self._engine.catch_up([each.sequence for each in followed], _MAX_CAUGHT_UP) > 0

    def draft(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """Return what the model proposes, empty for who has not caught up."""
        wants = [
            Want(each.followed.sequence, each.max_num_tokens, each.least_chance) for each in wanted
        ]
        return [Proposal(each.token_ids, each.chances) for each in self._engine.propose(wants)]

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """Return the n-grams' proposals and, for who has none that are any good, the model's."""
        proposals = [self.look_up(each.followed, each.max_num_tokens) for each in wanted]
        pairs = zip(wanted, proposals, strict=True)
        without = [each for each, proposal in pairs if proposal is None]
        if without:
            self.catch_up([each.followed for each in without])
        drafted = iter(self.draft(without))
        return [next(drafted) if proposal is None else proposal for proposal in proposals]

    def close(self) -> None:
        """Let go of threads and memory."""
        self._engine.close()
