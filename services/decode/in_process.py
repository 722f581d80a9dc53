"""
The decode worker's batches without bus, leases, drafts and other processes.

Steps are planned, computed, sampled and turned into text by the code of the worker, so that all
that a stack takes longer is what it takes for being one.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from slipstream.services.decode import batch, intake
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.config import DecodeConfig
from slipstream.shared.ids import HostId, RequestId
from slipstream.shared.kv.arena import Arena
from slipstream.shared.measure.load.engine import Emitted
from slipstream.shared.messages.jobs import DecodeJob, ReplyTarget
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.detokenizer import Vocabulary
from slipstream.shared.model.runner import ModelRunner
from slipstream.shared.model.sampling import Sampler
from slipstream.shared.model.vocabulary import open_vocabulary
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.model_source import open_model
from slipstream.shared.worker.pace import Pace
from slipstream.shared.worker.runner_source import open_runner

_HOST_ID = HostId("in-process")
_FIRST_BLOCK = 1  # behind the null block


class InProcessEngine:
    """A batch that requests join as soon as there are a seat and blocks for all of them."""

    def __init__(
        self,
        model: ModelConfig,
        vocabulary: Vocabulary,
        runner: ModelRunner,
        config: DecodeConfig,
        num_blocks: int,
        block_size: int,
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._runner = runner
        self._block_size = block_size
        self._num_seats = config.num_seats
        self._pace = Pace(config.token_budget, config.step_stretch, config.prompt_step_ms / 1000)
        self._tracer = Tracer()
        self._free_block_ids = list(range(_FIRST_BLOCK, num_blocks))
        self._waiting: deque[DecodeSequence] = deque()
        self._running: list[DecodeSequence] = []

    @property
    def is_idle(self) -> bool:
        """There is nothing to step."""
        return not self._waiting and not self._running

    def add(self, request_id: RequestId, token_ids: PackedInts, num_output_tokens: int) -> None:
        """Take a request that is answered greedily, and as long as it is said here."""
        span = self._tracer.start("in process")
        job = DecodeJob(
            request_id=request_id,
            attempt=1,
            model="",
            prompt_token_ids=token_ids,
            sampling=SamplingParameters(
                seed=0, temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True
            ),
            reply=ReplyTarget("", is_streamed=True),
            root_span=span.context,
            attempt_span=span.context,
        )
        sequence = intake.make_sequence(job, self._model, self._vocabulary, span)
        sequence.sampler = Sampler(job.sampling, token_ids, eos_token_ids=self._model.eos_token_ids)
        self._waiting.append(sequence)

    def step(self) -> list[Emitted]:
        """Run one step; return what it said."""
        self._admit()
        parts = batch.plan(self._running, {}, self._pace.budget, self._block_size)
        started = time.perf_counter()
        batch.sample(parts, self._runner.forward([part.rows for part in parts]))
        self._pace.saw(*batch.shape_of(parts), time.perf_counter() - started)
        for part in parts:
            part.sequence.error = part.error
            if part.error is None:
                batch.apply(part)
        said = [_emitted(part.sequence) for part in parts]
        self._retire()
        return [each for each in said if each.num_tokens or each.is_over]

    def clear(self) -> None:
        """Drop all requests."""
        for sequence in self._running:
            self._free_block_ids += sequence.block_ids
        self._running.clear()
        self._waiting.clear()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._num_seats:
            sequence = self._waiting[0]
            num_tokens = len(sequence.token_ids) + sequence.job.sampling.max_tokens
            num_blocks = -(-num_tokens // self._block_size)
            if num_blocks > len(self._free_block_ids):
                assert self._running, "an empty engine has blocks for any request"
                return
            sequence.block_ids = self._free_block_ids[-num_blocks:]
            del self._free_block_ids[-num_blocks:]
            self._running.append(self._waiting.popleft())

    def _retire(self) -> None:
        for sequence in self._running:
            if sequence.is_over:
                self._free_block_ids += sequence.block_ids
        self._running = [each for each in self._running if not each.is_over]


def _emitted(sequence: DecodeSequence) -> Emitted:
    frame = sequence.log.next_frame()
    error = None if sequence.error is None else str(sequence.error)
    num_tokens = 0 if frame is None else len(frame.token_ids)
    return Emitted(sequence.job.request_id, num_tokens, sequence.is_over, error)


@contextlib.contextmanager
def opened_engine(
    config: DecodeConfig, directory: Path, num_blocks: int
) -> Iterator[InProcessEngine]:
    """
    Open an engine as a worker has it, on blocks of its own in a directory.

    Raises ArenaError, ModelError, ConfigurationError.
    """
    # Cores are shared by those who have one arena: here by nobody.
    config = replace(config, arena_dir=directory)
    model = open_model(config)
    vocabulary = open_vocabulary(model.directory, config.cache_dir)
    with contextlib.ExitStack() as stack:
        arena = Arena.create(directory, _HOST_ID, 1, num_blocks, model.layout)
        stack.callback(arena.remove)
        stack.callback(arena.close)
        runner = open_runner(model, config, arena)
        stack.callback(runner.close)
        yield InProcessEngine(
            model.config, vocabulary, runner, config, num_blocks, model.layout.block_size
        )
