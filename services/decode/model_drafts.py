"""Drafts of a model within the decode worker: on its threads, between two steps."""

import time
from collections.abc import Mapping, Sequence

import structlog

from slipstream.services.decode.batch import Part, Proposals
from slipstream.services.decode.draft_policy import DraftPolicy, Offer
from slipstream.services.decode.draft_sampling import sampling_of
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.drafting.drafter import Drafter, Followed, Proposal, Wanted
from slipstream.shared.worker.activities import Activity
from slipstream.shared.worker.engine import EngineThread
from slipstream.shared.worker.report_book import Attempt

log = structlog.get_logger()

_FIRST_DRAFT_S = 0.4e-3
_LEARNED = 0.05  # of what a token took in the last round


class ModelDrafts:
    """
    Asks n-grams first, if they are wanted too, and the model for who has none that are any good.

    A round of the model is on the engine's thread, where nothing else is computed meanwhile.
    """

    activity: Activity = "sampling"

    def __init__(self, policy: DraftPolicy, drafter: Drafter, engine: EngineThread) -> None:
        self._policy = policy
        self._drafter = drafter
        self._engine = engine
        self._followed: dict[Attempt, Followed] = {}
        self._ended: list[Followed] = []
        self._draft_s = _FIRST_DRAFT_S
        self._is_broken = False

    async def open(self, sequence: DecodeSequence) -> None:
        """Begin with a sequence."""
        if self._policy.max_num_tokens(sequence) == 0:
            return
        self._policy.begin(sequence)
        num_prompt_tokens = len(sequence.job.prompt_token_ids)
        sampling = sampling_of(sequence.job.sampling)
        self._followed[sequence.attempt] = self._drafter.follow(num_prompt_tokens, sampling)

    async def close(self, sequence: DecodeSequence) -> None:
        """Forget a sequence, as soon as no round is under way."""
        followed = self._followed.pop(sequence.attempt, None)
        if followed is not None:
            self._ended.append(followed)

    async def propose(self, sequences: Sequence[DecodeSequence]) -> Proposals:
        """Return what the next step should verify."""
        while self._ended:
            self._drafter.forget(self._ended.pop())
        streams = [each for each in sequences if each.is_decoding]
        asking = [
            Offer(each, num_tokens)
            for each in streams
            if each.attempt in self._followed
            and (num_tokens := self._policy.max_num_tokens(each)) > 0
        ]
        found = {
            each.sequence.attempt: self._look_up(each.sequence, each.max_num_tokens)
            for each in asking
        }
        without = [each for each in asking if found[each.sequence.attempt] is None]
        found |= await self._drafted(without, streams)
        offers = [
            (each.sequence, proposal)
            for each in asking
            if (proposal := found[each.sequence.attempt]) is not None and proposal.token_ids
        ]
        lengths = self._policy.lengths(
            [Offer(each, len(proposal.token_ids)) for each, proposal in offers],
            streams,
            chances=[proposal.chances for _, proposal in offers],
        )
        return {
            each.attempt: proposal.token_ids[:length]
            for (each, proposal), length in zip(offers, lengths, strict=True)
            if length
        }

    def stepped(self, parts: Sequence[Part], seconds: float) -> None:
        """Learn from a step, whose results have been taken over."""
        self._policy.stepped(parts, seconds)

    async def shut(self) -> None:
        """Let go of the model."""
        await self._engine.run(self._drafter.close)

    def _look_up(self, sequence: DecodeSequence, num_tokens: int) -> Proposal | None:
        followed = self._followed[sequence.attempt]
        self._drafter.extend(followed, sequence.token_ids[followed.num_tokens :])
        return self._drafter.look_up(followed, num_tokens)

    async def _drafted(
        self, asking: Sequence[Offer], streams: Sequence[DecodeSequence]
    ) -> Mapping[Attempt, Proposal | None]:
        """Let the model draft where that should pay."""
        expected = [
            [rate ** (idx + 1) for idx in range(num_tokens)]
            for rate, num_tokens in (
                (self._followed[each.sequence.attempt].of_model.rate, each.max_num_tokens)
                for each in asking
            )
        ]
        lengths = self._policy.lengths(asking, streams, draft_s=self._draft_s, chances=expected)
        least_chance = self._policy.least_chance(streams, self._draft_s)
        wanted = {
            each.sequence.attempt: Wanted(
                self._followed[each.sequence.attempt],
                each.max_num_tokens,
                0.0 if self._is_fixed(each.sequence) else least_chance,
            )
            for each, length in zip(asking, lengths, strict=True)
            if length
        }
        if not wanted or self._is_broken:
            return {}
        try:
            proposals = await self._engine.run(lambda: self._round(list(wanted.values())))
        except Exception:
            # Whatever broke a round breaks no stream: they go on without this model.
            log.exception("draft_failed", num_sequences=len(wanted))
            self._is_broken = True
            return {}
        return dict(zip(wanted, proposals, strict=True))

    def _round(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """Run on the engine's thread."""
        # A piece a step: those who have their tokens already must not wait for a long prompt.
        self._drafter.catch_up([each.followed for each in wanted])
        started = time.perf_counter()
        proposals = self._drafter.draft(wanted)
        num_tokens = sum(len(proposal.token_ids) for proposal in proposals)
        if num_tokens:
            seconds = (time.perf_counter() - started) / num_tokens
            self._draft_s += _LEARNED * (seconds - self._draft_s)
        return proposals

    @staticmethod
    def _is_fixed(sequence: DecodeSequence) -> bool:
        return sequence.job.sampling.num_speculative_tokens is not None
