"""The one thread of a worker that computes: the event loop never does."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from slipstream.shared.kv.arena import Arena
from slipstream.shared.model.runner import ModelRunner, SequenceRows
from slipstream.shared.process_memory import give_back_free
from slipstream.shared.worker.activities import Activity

T = TypeVar("T")

# After so long without work the next pass may take its memory anew: a millisecond or two.
PAUSE_S = 1.0


class StaleBlockError(AssertionError):
    """A step was about to touch a block that this worker doesn't hold (any more)."""


def check_blocks(arena: Arena, block_ids: Sequence[int], generations: Sequence[int]) -> None:
    """Compare a table with the arena's generations. Raises StaleBlockError."""
    table = arena.generations
    for block_id, generation in zip(block_ids, generations, strict=True):
        if table[block_id] != generation:
            raise StaleBlockError(
                f"block {block_id} is in generation {table[block_id]}, held was {generation}"
            )


class EngineThread:
    """Runs forward passes and what belongs to them, one after another."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.busy_s = 0.0
        self._sampling_s = 0.0
        self._told = (0.0, 0.0, 0.0, 0.0)  # seconds by phase, as of the last `spent`
        self._told_busy_s = 0.0
        self._told_sampling_s = 0.0
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function on the engine's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def wait(self, work: asyncio.Event) -> None:
        """Wait for work; a longer pause gives back the memory that only passes need."""
        if work.is_set():
            return
        try:
            async with asyncio.timeout(PAUSE_S):
                await work.wait()
        except TimeoutError:
            await self.run(self._rest)
            await work.wait()

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """Run one packed pass; to be called within `run`."""
        started = time.perf_counter()
        try:
            return self.runner.forward(batch)
        finally:
            self.busy_s += time.perf_counter() - started

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Choose tokens while a block runs; to be entered within `run`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._sampling_s += time.perf_counter() - started

    def spent(self) -> dict[Activity, float]:
        """
        Return what passes and sampling have taken since the last call.

        Of a runner that can't tell, all is arithmetic. Not while anything runs.
        """
        busy_s, self._told_busy_s = self.busy_s - self._told_busy_s, self.busy_s
        sampling_s = self._sampling_s - self._told_sampling_s
        self._told_sampling_s = self._sampling_s
        counters = self.runner.counters
        if counters is None:
            return {"arithmetic": busy_s, "sampling": sampling_s}
        told, self._told = self._told, counters.seconds
        weights, kv, arithmetic, cores = (
            now - before for now, before in zip(self._told, told, strict=True)
        )
        return {
            "weights": weights,
            "kv": kv,
            "arithmetic": arithmetic,
            "waiting": cores,
            # Filling the tables that the kernels read.
            "other": max(0.0, busy_s - (weights + kv + arithmetic + cores)),
            "sampling": sampling_s,
        }

    def close(self) -> None:
        """Let the running step finish; nothing is started after it."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self.runner.close()

    def _rest(self) -> None:
        self.runner.rest()
        give_back_free()
