"""Drafting with a model for many sequences: messages in, proposals out, on one thread."""

from collections import OrderedDict

from slipstream.shared.drafting.drafter import Drafter, Followed, Wanted
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.draft import (
    DraftClose,
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftSampling,
    DraftTokens,
    DraftWant,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.worker.report_book import Attempt


class DraftMismatchError(SlipstreamError):
    """The draft does not speak of the tokens of the target that asks."""

    code = "draft_mismatch"

    def __init__(self, theirs: str, ours: str) -> None:
        super().__init__(
            f"this worker drafts for {ours}, not for {theirs}: give both the same --model, or the "
            "draft worker another --draft-model"
        )


class ModelProposer:
    """
    Owns what is known of each sequence, as `Proposer` does, and the model's KV of it.

    Bounded: the sequence that asked longest ago is forgotten; its decode worker is told so and
    sends it whole again.
    """

    def __init__(
        self, drafter: Drafter, model: str, tokenizer_fingerprint: str, max_num_sequences: int
    ) -> None:
        self._drafter = drafter
        self._model = model
        self._fingerprint = tokenizer_fingerprint
        self._max_num_sequences = max_num_sequences
        self._followed: OrderedDict[Attempt, Followed] = OrderedDict()

    @property
    def num_sequences(self) -> int:
        """Sequences known."""
        return len(self._followed)

    def check(self, message: DraftOpen) -> None:
        """Refuse a target whose tokens mean something else. Raises DraftMismatchError."""
        theirs = message.tokenizer_fingerprint
        if theirs and theirs != self._fingerprint:
            raise DraftMismatchError(
                f"{message.model} (tokenizer {theirs})",
                f"{self._model} (tokenizer {self._fingerprint})",
            )

    def open(self, message: DraftOpen) -> None:
        """Begin with a sequence."""
        attempt = (message.request_id, message.attempt)
        self._restart(attempt, message.token_ids, message.num_prompt_tokens, message.sampling)

    def close(self, message: DraftClose) -> None:
        """Forget a sequence."""
        self._forget((message.request_id, message.attempt))

    def catch_up(self) -> bool:
        """Compute a piece of the prompts that came; tell whether there was any."""
        return self._drafter.catch_up(list(self._followed.values()))

    def propose(self, job: DraftJob) -> DraftTokens:
        """Answer every want."""
        wanted = {}
        for want in job.wants:
            followed = self._take_in(want)
            if followed is not None:
                wanted[want.request_id, want.attempt] = Wanted(
                    followed, want.max_num_tokens, want.least_chance
                )
        proposals = dict(zip(wanted, self._drafter.propose(list(wanted.values())), strict=True))
        return DraftTokens(
            [
                DraftProposal(
                    request_id=want.request_id,
                    attempt=want.attempt,
                    position=want.position,
                    token_ids=PackedInts(proposals[attempt].token_ids if is_known else ()),
                    is_lost=not is_known,
                )
                for want in job.wants
                for attempt in [(want.request_id, want.attempt)]
                for is_known in [attempt in proposals]
            ]
        )

    def draft_ahead(self, job: DraftJob) -> None:
        """Go on as if all of a proposal, and one token more, were accepted: it may be asked for."""
        ahead = [
            Wanted(followed, 2 * want.max_num_tokens + 1, want.least_chance)
            for want in job.wants
            if (followed := self._followed.get((want.request_id, want.attempt))) is not None
        ]
        self._drafter.draft(ahead)

    def shut(self) -> None:
        """Let go of the model."""
        self._drafter.close()

    def _take_in(self, want: DraftWant) -> Followed | None:
        """Add what is new, cut by position as it may come twice; None where some is missing."""
        attempt = (want.request_id, want.attempt)
        if want.is_whole:
            self._restart(attempt, want.new_token_ids, want.num_prompt_tokens, want.sampling)
        followed = self._followed.get(attempt)
        if followed is None:
            return None
        self._followed.move_to_end(attempt)
        first = want.position - len(want.new_token_ids)
        if first <= followed.num_tokens:
            self._drafter.extend(followed, want.new_token_ids[followed.num_tokens - first :])
        return followed if followed.num_tokens == want.position else None

    def _restart(
        self,
        attempt: Attempt,
        token_ids: PackedInts,
        num_prompt_tokens: int,
        sampling: DraftSampling | None,
    ) -> None:
        self._forget(attempt)
        followed = self._drafter.follow(num_prompt_tokens, sampling)
        self._drafter.extend(followed, token_ids)
        self._followed[attempt] = followed
        while len(self._followed) > self._max_num_sequences:
            self._forget(next(iter(self._followed)))

    def _forget(self, attempt: Attempt) -> None:
        followed = self._followed.pop(attempt, None)
        if followed is not None:
            self._drafter.forget(followed)
