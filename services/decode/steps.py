"""The loop that decodes: sequences join and leave between steps, one packed forward a step."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from slipstream.services.decode.batch import Part, Proposals, apply, plan, sample
from slipstream.services.decode.drafts import DraftClient
from slipstream.services.decode.grants import BlockGrants
from slipstream.services.decode.metrics import DecodeMetrics
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.telemetry.logging import request_fields
from slipstream.shared.worker.engine import StaleBlockError, check_blocks
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.leasing import JobEndedError

log = structlog.get_logger()

# A step starts only under leases that surely outlast it.
LEASE_MARGIN_S = 2.0
_STALL_S = 0.05


class DecodeSteps:
    """Owns the running batch."""

    def __init__(
        self,
        host: WorkerHost,
        grants: BlockGrants,
        drafts: DraftClient | None,
        token_budget: int,
        metrics: DecodeMetrics,
        on_progress: Callable[[DecodeSequence], None],
        on_preempted: Callable[[DecodeSequence], None],
    ) -> None:
        self._host = host
        self._grants = grants
        self._drafts = drafts
        self._token_budget = token_budget
        self._metrics = metrics
        self._on_progress = on_progress
        self._on_preempted = on_preempted
        self._margin_s = min(LEASE_MARGIN_S, host.lease_s / 4)
        self._sequences: list[DecodeSequence] = []
        self._work = asyncio.Event()

    def add(self, sequence: DecodeSequence) -> None:
        """Take a sequence into the next step."""
        self._sequences.append(sequence)
        self._grants.prepare()
        self._metrics.steps.work.start()
        self._work.set()

    async def run(self) -> None:
        """Step for ever; sleep when there is nothing to do."""
        while True:
            await self._host.engine.wait(self._work)
            self._retire()
            if not self._sequences:
                # What nobody here needs must not keep a prompt waiting elsewhere.
                await self._grants.give_back()
                continue
            proposals = await self._proposals()
            ready = [each for each in self._sequences if self._is_ready(each, proposals)]
            parts = plan(ready, proposals, self._token_budget, self._host.model.layout.block_size)
            if parts:
                await self._step(parts)
            else:
                await self._wait_or_preempt()

    async def _proposals(self) -> Proposals:
        return await self._drafts.propose(self._sequences) if self._drafts else {}

    async def _step(self, parts: Sequence[Part]) -> None:
        try:
            await self._host.engine.run(lambda: self._compute(parts))
        except Exception as error:
            # Nobody can tell whose rows broke the pass: all of its sequences end, the worker stays.
            log.exception("step_failed", num_sequences=len(parts))
            for part in parts:
                part.error = error
        for part in parts:
            # One that came during the step (the lease or the manager is lost) must stand.
            part.sequence.error = part.sequence.error or part.error
            if part.sequence.error is None:
                apply(part)
            self._on_progress(part.sequence)
        self._metrics.stepped(parts)

    def _compute(self, parts: Sequence[Part]) -> None:
        """Run on the engine's thread."""
        sound = [part for part in parts if self._is_sound(part)]
        if not sound:
            return
        sample(sound, self._host.engine.forward([part.rows for part in sound]))

    def _is_sound(self, part: Part) -> bool:
        try:
            check_blocks(self._host.arena, part.sequence.block_ids, part.sequence.generations)
        except StaleBlockError as error:
            # One table that is wrong is one request that fails.
            part.error = error
            return False
        return True

    def _is_ready(self, sequence: DecodeSequence, proposals: Proposals) -> bool:
        """Grow the sequence's table for the coming rows; False when it must wait."""
        if sequence.lease_id is None or not self._host.keeper.is_safe(
            sequence.lease_id, self._margin_s
        ):
            return False
        num_drafts = len(proposals.get(sequence.attempt, ()))
        # Drafts shrink to what fits when blocks are short; the one real row needs its slot.
        return self._grow(sequence, num_drafts) or self._grow(sequence, 0)

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

    async def _wait_or_preempt(self) -> None:
        """Nothing can step: wait for blocks, and when there are none let the newest give way."""
        await self._grants.wait_changed(_STALL_S)
        if not self._grants.is_exhausted or self._grants.num_blocks:
            return
        holding = [each for each in self._sequences if each.lease_id is not None]
        if len(holding) > 1:
            self._preempt(holding[-1])

    def _preempt(self, sequence: DecodeSequence) -> None:
        """Give a sequence's blocks back; its KV is recomputed when there is room again."""
        job = sequence.job
        log.info("preempted", **request_fields(job.request_id, job.root_span), attempt=job.attempt)
        self._metrics.preempted()
        self._sequences.remove(sequence)
        sequence.num_preemptions += 1
        sequence.num_computed_tokens = 0
        sequence.block_ids.clear()
        sequence.generations.clear()
        self._on_preempted(sequence)

    def _retire(self) -> None:
        """Between two steps: let go of what is over, so that its blocks may be given away."""
        for sequence in self._sequences:
            if sequence.deadline.is_over and not sequence.is_over:
                sequence.error = JobEndedError(
                    "deadline_exceeded", "the deadline passed before the answer's end"
                )
            if sequence.is_over:
                sequence.retired.set()
        self._sequences = [each for each in self._sequences if not each.is_over]
        if not self._sequences:
            self._metrics.steps.work.stop()
            self._work.clear()
