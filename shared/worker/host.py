"""A worker's place on its host: the connection to the KV manager, the arena, its leases."""

import asyncio
import os
from functools import partial
from typing import Self

import structlog

from slipstream.shared.bus.bus import Bus
from slipstream.shared.config import WorkerConfig
from slipstream.shared.ids import HostId, WorkerId
from slipstream.shared.kv.arena import Arena
from slipstream.shared.kv.host_link import HostLink
from slipstream.shared.messages.common import PROTOCOL_VERSION, Role
from slipstream.shared.messages.kv import ArenaHello
from slipstream.shared.messages.reports import WorkerRecord
from slipstream.shared.model.vocabulary import open_vocabulary
from slipstream.shared.version import VERSION
from slipstream.shared.worker.engine import EngineThread
from slipstream.shared.worker.lease_keeper import LeaseKeeper
from slipstream.shared.worker.model_source import ServedModel, open_model
from slipstream.shared.worker.prompt_gate import PromptGate
from slipstream.shared.worker.runner_source import open_runner
from slipstream.shared.worker.sampler_source import SamplerSource
from slipstream.shared.worker.step_note import StepNote
from slipstream.shared.worker.throughput import Speeds

log = structlog.get_logger()

CONNECT_S = 30.0
_NUM_STEPS_AHEAD = 2


class WorkerHost:
    """Everything a compute worker holds on its host; closing it gives all of it back."""

    def __init__(
        self,
        link: HostLink,
        arena: Arena,
        model: ServedModel,
        engine: EngineThread,
        keeper: LeaseKeeper,
        samplers: SamplerSource,
        note: StepNote,
        config: WorkerConfig,
    ) -> None:
        self.link = link
        self.arena = arena
        self.model = model
        self.engine = engine
        self.keeper = keeper
        self.samplers = samplers
        self.note = note
        self.speeds = Speeds()
        # Prompts lease when a step has rows for them, and then blocks for this step and the next.
        self.gate = PromptGate(config.max_num_prompt_tokens)
        self.num_tokens_ahead = _NUM_STEPS_AHEAD * config.max_num_prompt_tokens
        self._is_paging = config.is_paging
        if not config.is_paging:
            self.num_tokens_ahead = model.config.max_context_length
        self.host_id: HostId = arena.host_id
        self.num_blocks = arena.num_blocks - 1
        self.lease_s = link.welcome.lease_ms / 1000
        # Results of two workers may be mixed in one request only if this is the same.
        self.numerics = "/".join(
            (model.weight_format, f"kv-{model.layout.dtype}", engine.runner.numerics)
        )

    @classmethod
    async def open(
        cls,
        config: WorkerConfig,
        bus: Bus,
        worker: tuple[WorkerId, int],
    ) -> Self:
        """Connect, map, load. Raises ArenaError, ModelError."""
        model = await asyncio.to_thread(open_model, config)
        worker_id, epoch = worker
        hello = ArenaHello(worker_id=worker_id, worker_epoch=epoch, pid=os.getpid())
        link = await HostLink.connect(config.arena_dir, hello, CONNECT_S)
        welcome = link.welcome
        arena = Arena.open(config.arena_dir / welcome.path, model.layout)
        note = StepNote(config.arena_dir, worker_id)
        runner = await asyncio.to_thread(open_runner, model, config, arena)
        keeper = LeaseKeeper(bus, arena.host_id, worker, welcome.lease_ms, link)
        vocabulary = partial(open_vocabulary, model.directory, config.cache_dir)
        samplers = SamplerSource(model.config, vocabulary)
        host = cls(link, arena, model, EngineThread(runner), keeper, samplers, note, config)
        log.info("model_loaded", model=model.name, numerics=host.numerics)
        return host

    async def close(self) -> None:
        """Stop computing, then hang up: the manager takes the end of the connection as proof."""
        await asyncio.to_thread(self.engine.close)
        await self.link.close()
        self.note.close()
        self.arena.close()

    def num_blocks_of(self, num_tokens: int) -> int:
        """Return how many blocks a sequence leases that has so many tokens when it begins."""
        if not self._is_paging:
            num_tokens = self.model.config.max_context_length
            # Few as they are in a test, all of them must be enough for one sequence.
            return min(self.model.layout.num_blocks_for(num_tokens), self.num_blocks)
        return self.model.layout.num_blocks_for(num_tokens)

    def record(self, role: Role, worker: tuple[WorkerId, int], num_seats: int) -> WorkerRecord:
        """Return the registry record of this worker."""
        return WorkerRecord(
            worker_id=worker[0],
            role=role,
            epoch=worker[1],
            protocol=PROTOCOL_VERSION,
            version=VERSION,
            model=self.model.name,
            model_fingerprint=self.model.fingerprint,
            layout=self.model.layout.fingerprint,
            numerics=self.numerics,
            host_id=self.host_id,
            num_seats=num_seats,
            num_blocks=self.num_blocks,
            max_context_length=self.model.config.max_context_length,
        )
