"""The loop that computes prompts, a packed step after another."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import structlog

from slipstream.services.prefill.batch import Chunk, plan
from slipstream.services.prefill.sequence import PrefillSequence
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.model.row_passes import Logits, row_passes
from slipstream.shared.worker.engine import StaleBlockError, check_blocks
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.leasing import JobEndedError
from slipstream.shared.worker.step_cost import NO_STREAMS, StepCost, prompts_in
from slipstream.shared.worker.step_metrics import StepMetrics
from slipstream.shared.worker.turns import Turns
from slipstream.shared.worker.urgency import PromptTurns

log = structlog.get_logger()

# A step starts only under leases that surely outlast it.
LEASE_MARGIN_S = 2.0


class PrefillSteps:
    """Owns the sequences being computed; `add` one and wait for its `progress`."""

    def __init__(
        self, host: WorkerHost, token_budget: int, max_step_s: float, metrics: StepMetrics
    ) -> None:
        self._host = host
        self._metrics = metrics
        self._clock = metrics.activities
        self._cost = StepCost()
        self._turns = PromptTurns(token_budget, max_step_s, self._cost)
        self._margin_s = min(LEASE_MARGIN_S, host.lease_s / 4)
        self._sequences: list[PrefillSequence] = []
        self._step_turns = Turns()
        self._work = asyncio.Event()
        self._changed = asyncio.Event()

    def add(self, sequence: PrefillSequence) -> None:
        """Take a sequence into the next step."""
        self._sequences.append(sequence)
        self._metrics.work.start()
        self._work.set()
        self.wake()

    @property
    def num_stepped(self) -> int:
        """Sequences that have blocks to be computed in."""
        return len(self._sequences)

    async def run(self) -> None:
        """Step for ever; sleep when there is nothing to do."""
        while True:
            self._clock.enter("other" if self._work.is_set() else "idle")
            await self._host.engine.wait(self._work)
            self._clock.enter("other")
            able = self._step_turns.next(self._able(), lambda each: each.job.is_alone)
            chunks = plan(*self._turns.next(able, _priority_of, time.monotonic()))
            if chunks:
                await self._step(chunks)
            self._retire()
            if not chunks and self._sequences:
                self._clock.enter("waiting")
                await self._stall()

    def wake(self) -> None:
        """Look again: a sequence has got blocks, or is over."""
        self._changed.set()

    async def _stall(self) -> None:
        """Wait for blocks, or for a renewal that is under way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._margin_s / 4):
                await self._changed.wait()
        self._changed.clear()

    async def _step(self, chunks: Sequence[Chunk]) -> None:
        # Until the event loop goes on here, which it does when it has heard out all others.
        self._clock.enter("messages")
        try:
            await self._host.engine.run(lambda: self._compute(chunks))
        except Exception as error:
            # Nobody can tell whose rows broke the pass: all of its sequences end, the worker stays.
            log.exception("step_failed", num_sequences=len(chunks))
            for chunk in chunks:
                chunk.sequence.error = self._loss(chunk) or error
        self._clock.split(self._host.engine.spent())
        self._clock.enter("messages")
        self._metrics.stepped(len(chunks))
        for chunk in chunks:
            self._metrics.row_failed(chunk.sequence.error)
            chunk.sequence.progress.set()

    def _compute(self, chunks: Sequence[Chunk]) -> None:
        """Run on the engine's thread."""
        sound = [chunk for chunk in chunks if self._is_sound(chunk)]
        if not sound:
            return
        started = time.perf_counter()
        with self._host.note.during(chunk.sequence.attempt for chunk in sound):
            logits = self._host.engine.forward([chunk.rows for chunk in sound])
            seconds = time.perf_counter() - started
            with self._host.engine.sampling():
                _sample(sound, logits)
        rows = prompts_in([chunk.rows for chunk in sound])
        self._cost.learn(NO_STREAMS, rows, seconds)
        self._host.speeds.prompts.saw(rows.num_rows, seconds)
        for chunk in sound:
            chunk.sequence.num_computed_tokens += chunk.rows.num_rows
            chunk.sequence.num_chunks += 1

    def _is_sound(self, chunk: Chunk) -> bool:
        leased = chunk.sequence.leased
        try:
            check_blocks(self._host.arena, leased.block_ids, leased.generations)
        except StaleBlockError as error:
            # One table that is wrong is one request that fails.
            chunk.sequence.error = self._loss(chunk) or error
            return False
        return True

    def _loss(self, chunk: Chunk) -> JobEndedError | None:
        """Return why a chunk can't count: whoever stood still may have read what others wrote."""
        if self._host.keeper.is_safe(chunk.sequence.leased.lease_id, 0.0):
            return None
        return JobEndedError("lease_lost", "the lease ran out")

    def _able(self) -> list[PrefillSequence]:
        """Return those that a step can compute, in the order in which they came."""
        keeper = self._host.keeper
        for sequence in self._sequences:
            sequence.leased.absorb()
        return [
            sequence
            for sequence in self._sequences
            if sequence.is_able and keeper.is_safe(sequence.leased.lease_id, self._margin_s)
        ]

    def _retire(self) -> None:
        """Between two steps: let go of what is done, so that its blocks may be given away."""
        for sequence in self._sequences:
            if sequence.is_done:
                sequence.is_retired = True
                sequence.progress.set()
        self._sequences = [sequence for sequence in self._sequences if not sequence.is_retired]
        if not self._sequences:
            self._metrics.work.stop()
            self._work.clear()


def _sample(chunks: Sequence[Chunk], logits: Logits) -> None:
    of_rows = zip(logits, row_passes().peaks(logits), strict=True)
    for chunk in chunks:
        if chunk.is_last:
            try:
                chunk.sequence.first_token = chunk.sequence.sampler.sample(*next(of_rows))
            except SlipstreamError as error:
                chunk.sequence.error = error


def _priority_of(sequence: PrefillSequence) -> int:
    return sequence.job.priority
