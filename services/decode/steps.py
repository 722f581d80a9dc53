"""The loop that decodes: sequences join and leave between steps, one packed forward a step."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from slipstream.services.decode.batch import Part, Proposals, apply, plan, sample, shape_of
from slipstream.services.decode.grants import BlockGrants
from slipstream.services.decode.metrics import DecodeMetrics
from slipstream.services.decode.preemption import may_ask, num_spare, rank, victim
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.messages.kv import Reclaim, Reclaimed
from slipstream.shared.telemetry.logging import request_fields
from slipstream.shared.worker.activities import Activity
from slipstream.shared.worker.engine import StaleBlockError, check_blocks
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.leasing import JobEndedError
from slipstream.shared.worker.pace import Pace
from slipstream.shared.worker.report_book import Attempt
from slipstream.shared.worker.turns import Turns

log = structlog.get_logger()

# A step starts only under leases that surely outlast it.
LEASE_MARGIN_S = 2.0
_STALL_S = 0.05


class SequenceOwner(Protocol):
    """Hears what steps did to its sequences."""

    def progress(self, sequence: DecodeSequence) -> None:
        """A step went on with a sequence."""

    def preempted(self, sequence: DecodeSequence) -> None:
        """A sequence has to give its blocks back."""

    def commit_due(self, sequence: DecodeSequence) -> None:
        """A prompt waits for blocks that it has been promised."""


class Drafts(Protocol):
    """Proposes tokens. Nothing here can change one: proposals are verified."""

    activity: Activity  # what a worker does that asks for proposals

    async def open(self, sequence: DecodeSequence) -> None:
        """Begin with a sequence."""

    async def close(self, sequence: DecodeSequence) -> None:
        """Forget a sequence."""

    async def propose(self, sequences: Sequence[DecodeSequence]) -> Proposals:
        """Return what the next step should verify, in time."""
        ...

    def stepped(self, parts: Sequence[Part], seconds: float) -> None:
        """Learn from a step: its results have been taken over, and it took so long."""

    async def shut(self) -> None:
        """Let go of everything; nothing is asked after it."""


class DecodeSteps:
    """Owns the running batch."""

    def __init__(
        self,
        host: WorkerHost,
        grants: BlockGrants,
        drafts: Drafts | None,
        pace: Pace,
        metrics: DecodeMetrics,
        owner: SequenceOwner,
        *,
        is_continuous: bool = True,
    ) -> None:
        """Unless they are batched continuously, sequences that come wait until no other is left."""
        self._is_continuous = is_continuous
        self._host = host
        self._grants = grants
        self._drafts = drafts
        self._pace = pace
        self._metrics = metrics
        self._clock = metrics.steps.activities
        self._owner = owner
        self._margin_s = min(LEASE_MARGIN_S, host.lease_s / 4)
        self._sequences: list[DecodeSequence] = []
        self._next: list[DecodeSequence] = []  # those that wait for the batch to end
        self._preempted: list[DecodeSequence] = []
        self._short: list[DecodeSequence] = []  # of blocks, at the last look
        self._named_attempt: Attempt | None = None  # the KV manager wants it to give way
        self._num_releasing = 0  # preempted, and their blocks are not known to be free yet
        self._work = asyncio.Event()
        self._turns = Turns()

    def add(self, sequence: DecodeSequence) -> None:
        """Take a sequence into the next step."""
        if sequence in self._preempted:
            self._preempted.remove(sequence)
            self._sequences.append(sequence)
        elif self._is_continuous or not self._sequences:
            self._sequences.append(sequence)
        else:
            self._next.append(sequence)
        self._grants.prepare()
        self._metrics.steps.work.start()
        self._work.set()

    @property
    def num_stepped(self) -> int:
        """Sequences in the batch."""
        return len(self._sequences)

    def released(self) -> None:
        """Take note that a preempted sequence's blocks are free."""
        self._num_releasing -= 1
        self._grants.expect()

    def reclaim(self, message: Reclaim) -> Reclaimed:
        """Give back what the manager wants: idle blocks at once, a sequence's after the step."""
        is_unable = False
        if message.preempt_request_id is not None:
            named = (message.preempt_request_id, message.preempt_attempt)
            is_unable = all(each.attempt != named for each in self._sequences)
            self._named_attempt = None if is_unable else named
            self.wake()
        blocks = self._grants.give_up(message.num_blocks)
        return Reclaimed(worker_id=message.worker_id, blocks=blocks, is_unable=is_unable)

    def wake(self) -> None:
        """Look again: blocks have come."""
        self._grants.wake()

    def room_for(self, sequence: DecodeSequence) -> int | None:
        """Return how many blocks a lease must leave to those that run, or None: not now."""
        if not self._preempted:
            return 0
        num_running = len(self._sequences)
        if not may_ask(
            sequence, self._preempted, num_running=num_running, is_anyone_short=bool(self._short)
        ):
            return None
        return num_spare(num_running, self._grants.num_blocks)

    async def run(self) -> None:
        """Step for ever; sleep when there is nothing to do."""
        while True:
            self._clock.enter("other" if self._work.is_set() else "idle")
            await self._host.engine.wait(self._work)
            self._clock.enter("other")
            self._retire()
            if not self._sequences:
                # What nobody here needs must not keep a prompt waiting elsewhere.
                self._short = []
                await self._grants.give_back()
                continue
            proposals = await self._proposals()
            self._clock.enter("other")
            began = time.perf_counter()
            ready = self._ready(proposals)
            if (gives_way := self._named() or self._victim()) is not None:
                self._preempt(gives_way)
                continue
            turn = self._turns.next(ready, lambda each: each.job.is_alone)
            parts = plan(turn, proposals, self._pace.budget, self._host.model.layout.block_size)
            if parts:
                await self._step(parts)
                self._learn(parts, time.perf_counter() - began)
            else:
                self._clock.enter("waiting")
                await self._grants.wait_changed(_STALL_S)

    async def _proposals(self) -> Proposals:
        if self._drafts is None:
            return {}
        self._clock.enter(self._drafts.activity)
        return await self._drafts.propose(self._sequences)

    def _learn(self, parts: Sequence[Part], seconds: float) -> None:
        if self._drafts is not None:
            self._drafts.stepped(parts, seconds)

    async def _step(self, parts: Sequence[Part]) -> None:
        # Until the event loop goes on here, which it does when it has heard out all others.
        self._clock.enter("messages")
        try:
            await self._host.engine.run(lambda: self._compute(parts))
        except Exception as error:
            # Nobody can tell whose rows broke the pass: all of its sequences end, the worker stays.
            log.exception("step_failed", num_sequences=len(parts))
            for part in parts:
                part.error = self._loss(part) or error
        self._clock.split(self._host.engine.spent())
        self._clock.enter("sampling")
        for part in parts:
            # One that came during the step (the lease or the manager is lost) must stand.
            part.sequence.error = part.sequence.error or part.error
            if part.sequence.error is None:
                apply(part)
        self._clock.enter("messages")
        for part in parts:
            self._owner.progress(part.sequence)
        self._metrics.stepped(parts)

    def _compute(self, parts: Sequence[Part]) -> None:
        """Run on the engine's thread."""
        sound = [part for part in parts if self._is_sound(part)]
        if not sound:
            return
        started = time.perf_counter()
        with self._host.note.during(part.sequence.attempt for part in sound):
            logits = self._host.engine.forward([part.rows for part in sound])
            with self._host.engine.sampling():
                sample(sound, logits)
        (streams, prompts), seconds = shape_of(sound), time.perf_counter() - started
        self._pace.saw(streams, prompts, seconds)
        self._host.speeds.prompts.saw(prompts.num_rows, seconds)
        for part in sound:
            # Whoever stood still inside the step may have read what others wrote meanwhile.
            part.error = part.error or self._loss(part)

    def _is_sound(self, part: Part) -> bool:
        try:
            check_blocks(self._host.arena, part.sequence.block_ids, part.sequence.generations)
        except StaleBlockError as error:
            # One table that is wrong is one request that fails.
            part.error = self._loss(part) or error
            return False
        return True

    def _loss(self, part: Part) -> JobEndedError | None:
        lease_id = part.sequence.lease_id
        if lease_id is None or self._host.keeper.is_safe(lease_id, 0.0):
            return None
        return JobEndedError("lease_lost", "the lease on its KV blocks ran out")

    def _ready(self, proposals: Proposals) -> list[DecodeSequence]:
        """Grow the tables for the coming rows; return the sequences that can step."""
        keeper = self._host.keeper
        safe = [
            each
            for each in self._sequences
            if each.lease_id is not None and keeper.is_safe(each.lease_id, self._margin_s)
        ]
        ready = []
        self._short = []
        for each in sorted(safe, key=rank, reverse=True):
            # Drafts shrink to what fits when blocks are short; the one real row needs its slot.
            if self._has_prompt_blocks(each):
                ready.append(each)
            elif each.num_reserved_blocks:
                self._owner.commit_due(each)
            elif self._grow(each, len(proposals.get(each.attempt, ()))) or self._grow(each, 0):
                ready.append(each)
            else:
                self._short.append(each)
        self._grants.short_lease_id = self._short[0].lease_id if self._short else None
        return ready

    def _has_prompt_blocks(self, sequence: DecodeSequence) -> bool:
        """Take over blocks that a prompt was promised; tell whether it can step on those."""
        if sequence.leased is not None:
            sequence.leased.absorb()
        block_size = self._host.model.layout.block_size
        return sequence.num_reserved_blocks > 0 and sequence.num_room_tokens(block_size) > 0

    def _grow(self, sequence: DecodeSequence, num_drafts: int) -> bool:
        assert sequence.lease_id is not None, "checked by the caller"
        num_needed = self._host.model.layout.num_blocks_for(len(sequence.token_ids) + num_drafts)
        num_missing = num_needed - len(sequence.block_ids)
        if num_missing <= 0:
            return True
        taken = self._grants.take(num_missing)
        if taken is None:
            return False
        block_ids = [block_id for block_id, _ in taken]
        generations = [generation for _, generation in taken]
        sequence.block_ids.extend(block_ids)
        sequence.generations.extend(generations)
        self._host.keeper.grow(sequence.lease_id, block_ids, generations)
        return True

    def _named(self) -> DecodeSequence | None:
        """Return who has to give way to a sequence of another worker."""
        named, self._named_attempt = self._named_attempt, None
        return next(
            (each for each in self._sequences if each.attempt == named and each.lease_id), None
        )

    def _victim(self) -> DecodeSequence | None:
        """Return who has to give way: only when there surely are no blocks, and one at a time."""
        has_none = self._grants.is_exhausted and not self._grants.num_blocks
        if not self._short or not has_none or self._num_releasing:
            return None
        return victim(self._short, [each for each in self._sequences if each.lease_id is not None])

    def _preempt(self, sequence: DecodeSequence) -> None:
        """Give a sequence's blocks back; its KV is recomputed when there is room again."""
        job = sequence.job
        log.info("preempted", **request_fields(job.request_id, job.root_span), attempt=job.attempt)
        self._metrics.preempted()
        self._sequences.remove(sequence)
        self._preempted.append(sequence)
        self._num_releasing += 1
        sequence.num_preemptions += 1
        if sequence.num_unscored_tokens > 0:
            sequence.prompt_logprobs.clear()  # its rows are all computed anew
        self._owner.preempted(sequence)

    def _retire(self) -> None:
        """Between two steps: let go of what is over, so that its blocks may be given away."""
        for sequence in (*self._sequences, *self._next):
            if sequence.deadline.is_over and not sequence.is_over:
                sequence.error = JobEndedError(
                    "deadline_exceeded", "the deadline passed before the answer's end"
                )
            if sequence.is_over:
                sequence.retired.set()
        self._sequences = [each for each in self._sequences if not each.is_over]
        self._next = [each for each in self._next if not each.is_over]
        if not self._sequences and not self._preempted:
            self._sequences, self._next = self._next, []
        if not self._sequences:
            self._metrics.steps.work.stop()
            self._work.clear()
