"""Asks a draft worker for proposals, waits no longer than the budget, drops what is late."""

import time
from collections.abc import Sequence

import structlog

from slipstream.services.decode.batch import Part
from slipstream.services.decode.draft_policy import DraftPolicy, Offer
from slipstream.services.decode.draft_sampling import sampling_of
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.subjects import DRAFT
from slipstream.shared.drafting.rate import Acceptance
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.draft import (
    DraftClose,
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftTokens,
    DraftWant,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import WorkerRecord, WorkerReport
from slipstream.shared.telemetry.context import inject
from slipstream.shared.telemetry.logging import request_fields
from slipstream.shared.worker.activities import Activity
from slipstream.shared.worker.report_book import Attempt

log = structlog.get_logger()

DEAD_AFTER_S = 1.2
_OPEN_S = 1.0
_MAX_MISSES = 2  # in a row; later ones, of which there is one a pause, end in another pause
_PAUSE_S = 1.0
_FIRST_ASK_S = 0.5e-3
_LEARNED = 0.1  # of how long the last answer took
_LEAST_ANSWERED = 0.05


class DraftClient:
    """
    Talks to one draft worker at a time, the one whose reports come.

    Nothing here can change a token: proposals are verified, and without any decode goes on.
    """

    activity: Activity = "messages"

    def __init__(
        self,
        bus: Bus,
        policy: DraftPolicy,
        budget_s: float,
        vocab_size: int,
        tokenizer_fingerprint: str = "",
    ) -> None:
        self._bus = bus
        self._policy = policy
        self._budget_s = budget_s
        self._vocab_size = vocab_size
        self._fingerprint = tokenizer_fingerprint
        self._refusing: set[WorkerId] = set()  # they draft for other tokens
        self._last_seen: dict[WorkerId, float] = {}
        self._worker_id: WorkerId | None = None
        self._num_told: dict[Attempt, int] = {}  # tokens that the draft worker knows
        self._num_misses = 0
        self._paused_until = 0.0
        self._ask_s = _FIRST_ASK_S
        self._answered = Acceptance(1.0)  # the part of wants for which there was a proposal

    async def find(self) -> None:
        """Learn from the registry who is up: the first sequence comes before the next report."""
        try:
            entries = await self._bus.registry().entries()
            records = [decoder_of(WorkerRecord).decode(entry) for entry in entries.values()]
        except SlipstreamError as error:
            log.info("draft_workers_not_found", error=str(error))
            return
        for record in records:
            if record.role == "draft" and not record.is_draining:
                self._last_seen.setdefault(record.worker_id, time.monotonic())

    def saw(self, report: WorkerReport) -> None:
        """Note a draft worker's report."""
        if report.worker_id not in self._refusing:
            self._last_seen[report.worker_id] = 0.0 if report.is_draining else time.monotonic()

    def choose(self) -> WorkerId | None:
        """Return the worker to ask; a change of worker means that nothing is known there."""
        now = time.monotonic()
        self._last_seen = {
            each: seen for each, seen in self._last_seen.items() if now - seen < DEAD_AFTER_S
        }
        if self._worker_id not in self._last_seen:
            self._worker_id = min(self._last_seen, default=None)
            self._num_told = dict.fromkeys(self._num_told, 0)
            self._num_misses, self._paused_until = 0, 0.0
        return self._worker_id

    async def open(self, sequence: DecodeSequence) -> None:
        """Announce a sequence, with its trace."""
        worker_id = self.choose()
        job = sequence.job
        if self._policy.max_num_tokens(sequence) == 0:
            return
        self._policy.begin(sequence)
        if worker_id is None:
            self._num_told[sequence.attempt] = 0  # whoever comes up gets it whole
            return
        num_tokens = len(sequence.token_ids)
        message = DraftOpen(
            request_id=job.request_id,
            attempt=job.attempt,
            token_ids=PackedInts(sequence.token_ids),
            model=job.model,
            tokenizer_fingerprint=self._fingerprint,
            num_prompt_tokens=len(job.prompt_token_ids),
            sampling=sampling_of(job.sampling),
        )
        try:
            await call(
                self._bus,
                DRAFT,
                message,
                timeout_s=_OPEN_S,
                headers=inject(job.attempt_span),
                worker_id=worker_id,
            )
        except SlipstreamError as error:
            fields = request_fields(job.request_id, job.root_span)
            log.info("draft_not_opened", **fields, attempt=job.attempt, error=str(error))
            num_tokens = 0
            if error.code == "draft_mismatch":
                self._refusing.add(worker_id)
                self._last_seen.pop(worker_id, None)
        if not sequence.is_over:
            is_same = worker_id == self._worker_id
            self._num_told[sequence.attempt] = num_tokens if is_same else 0

    async def close(self, sequence: DecodeSequence) -> None:
        """Say that a sequence has ended."""
        self._num_told.pop(sequence.attempt, None)
        if self._worker_id is None:
            return
        message = DraftClose(
            request_id=sequence.job.request_id,
            attempt=sequence.job.attempt,
            num_drafted_tokens=sequence.drafts.num_drafted,
            num_tested_tokens=sequence.drafts.num_tested,
            num_accepted_tokens=sequence.drafts.num_accepted,
        )
        subject = DRAFT.subject(worker_id=self._worker_id)
        await self._bus.publish(subject, encode(message))

    async def propose(self, sequences: Sequence[DecodeSequence]) -> dict[Attempt, Sequence[int]]:
        """Return the proposals that came in time."""
        worker_id = self.choose()
        if worker_id is None or time.monotonic() < self._paused_until:
            return {}
        wants = self._wants(sequences)
        if not wants:
            return {}
        started = time.monotonic()
        try:
            answer: object = await call(
                self._bus,
                DRAFT,
                DraftJob(wants),
                timeout_s=self._budget_s,
                worker_id=worker_id,
            )
        except SlipstreamError:
            self._miss()
            return {}
        if not isinstance(answer, DraftTokens):
            self._miss()
            return {}
        self._num_misses = 0
        self._ask_s += _LEARNED * (time.monotonic() - started - self._ask_s)
        num_answered = sum(bool(each.token_ids) for each in answer.proposals)
        self._answered.saw(len(wants), min(num_answered, len(wants)))
        for want in wants:
            self._num_told[want.request_id, want.attempt] = want.position
        by_attempt = {each.attempt: each for each in sequences}
        return {
            (proposal.request_id, proposal.attempt): list(proposal.token_ids)
            for proposal in answer.proposals
            if self._is_usable(proposal, by_attempt)
        }

    async def shut(self) -> None:
        """Nothing is held here that outlives the process."""

    def stepped(self, parts: Sequence[Part], seconds: float) -> None:
        """Learn from a step, whose results have been taken over."""
        self._policy.stepped(parts, seconds)

    def _wants(self, sequences: Sequence[DecodeSequence]) -> list[DraftWant]:
        """Ask for as much as should pay, the way there and back counted."""
        streams = [each for each in sequences if each.is_decoding]
        offers = [
            Offer(each, num_tokens)
            for each in streams
            if each.attempt in self._num_told and (num_tokens := self._policy.max_num_tokens(each))
        ]
        # A way that often brings nothing costs more for each proposal that it brings.
        ask_s = self._ask_s / max(self._answered.rate, _LEAST_ANSWERED)
        lengths = self._policy.lengths(offers, streams, ask_s=ask_s)
        least_chance = self._policy.least_chance(streams, 0.0) if streams else 0.0
        return [
            self._want(offer.sequence, length, least_chance)
            for offer, length in zip(offers, lengths, strict=True)
            if length
        ]

    def _want(self, sequence: DecodeSequence, num_tokens: int, least_chance: float) -> DraftWant:
        num_told = self._num_told[sequence.attempt]
        job = sequence.job
        is_fixed = job.sampling.num_speculative_tokens is not None
        return DraftWant(
            request_id=job.request_id,
            attempt=job.attempt,
            position=len(sequence.token_ids),
            new_token_ids=PackedInts(sequence.token_ids[num_told:]),
            max_num_tokens=num_tokens,
            is_whole=num_told == 0,
            num_prompt_tokens=0 if num_told else len(job.prompt_token_ids),
            sampling=None if num_told else sampling_of(job.sampling),
            least_chance=0.0 if is_fixed else least_chance,
        )

    def _is_usable(
        self, proposal: DraftProposal, by_attempt: dict[Attempt, DecodeSequence]
    ) -> bool:
        """Trust nothing: stale, too long and impossible proposals are dropped."""
        attempt = (proposal.request_id, proposal.attempt)
        sequence = by_attempt.get(attempt)
        if proposal.is_lost and attempt in self._num_told:
            self._num_told[attempt] = 0
        if sequence is None or proposal.position != len(sequence.token_ids):
            return False
        limit = self._policy.max_num_tokens(sequence)
        is_sane = 0 < len(proposal.token_ids) <= limit
        return is_sane and all(token_id < self._vocab_size for token_id in proposal.token_ids)

    def _miss(self) -> None:
        """Stop asking for a while when the worker keeps missing the budget."""
        self._num_misses += 1
        if self._num_misses >= _MAX_MISSES:
            self._paused_until = time.monotonic() + _PAUSE_S
