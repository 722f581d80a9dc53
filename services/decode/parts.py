"""The parts of a decode worker, put together."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from slipstream.services.decode.draft_policy import DraftPolicy
from slipstream.services.decode.drafts import DraftClient
from slipstream.services.decode.grants import BlockGrants
from slipstream.services.decode.jobs import DecodeJobs
from slipstream.services.decode.local_drafts import LocalDrafts
from slipstream.services.decode.metrics import DecodeMetrics
from slipstream.services.decode.publisher import StreamPublisher
from slipstream.services.decode.steps import DecodeSteps, Drafts
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.config import DecodeConfig
from slipstream.shared.ids import WorkerId
from slipstream.shared.model.vocabulary import open_vocabulary, tokenizer_fingerprint
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.draining import Draining
from slipstream.shared.worker.host import WorkerHost
from slipstream.shared.worker.pace import Pace
from slipstream.shared.worker.report_book import ReportBook
from slipstream.shared.worker.reporter import Reporter


@dataclass
class DecodeParts:
    """Everything a decode worker is made of."""

    host: WorkerHost
    token_bus: Bus
    grants: BlockGrants
    drafts: Drafts | None
    publisher: StreamPublisher
    jobs: DecodeJobs
    steps: DecodeSteps
    reporter: Reporter
    draining: Draining

    @property
    def draft_client(self) -> DraftClient | None:
        """What asks draft workers, if that is where drafts come from."""
        return self.drafts if isinstance(self.drafts, DraftClient) else None

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return what runs as long as the worker does; each ends only when it can't go on."""
        return (  # Any: a coroutine's send type
            self.steps.run(),
            self.grants.refill_loop(),
            self.publisher.keep_alive_loop(),
            self.host.keeper.renew_loop(),
            self.host.link.wait_gone(),
            self.draining.wait_drained(),
        )

    async def close(self) -> None:
        """Give everything back."""
        await self.jobs.pulls.close()
        await self.token_bus.close()
        if self.drafts is not None:
            # Before the host: it computes on the threads of the target.
            await self.drafts.shut()
        await self.host.close()


async def open_parts(
    config: DecodeConfig, bus: Bus, tracer: Tracer, worker: tuple[WorkerId, int], meter: Meter
) -> DecodeParts:
    """Map the arena, load the model and wire the parts."""
    host = await WorkerHost.open(config, bus, worker)
    vocabulary = await asyncio.to_thread(open_vocabulary, host.model.directory, config.cache_dir)
    # Tokens have a connection of their own: a burst of them must not delay a cancel.
    token_bus = await NatsBus.connect(config.nats_url, f"{worker[0]}-tokens", config.nats_access)
    book = ReportBook()
    metrics = DecodeMetrics(meter)
    grants = BlockGrants(bus, host.host_id, worker, config.num_granted_blocks)
    record = host.record("decode", worker, config.num_seats)
    reporter = Reporter(bus, record, book, speeds=host.speeds)
    drafts = await _drafts(config, bus, host)

    def changed() -> None:
        reporter.changed()
        metrics.steps.activities.recount()

    publisher = StreamPublisher(token_bus, config.stream_keep_s)
    jobs = DecodeJobs(
        bus,
        tracer,
        host,
        vocabulary,
        publisher,
        drafts,
        book,
        worker,
        config.num_seats,
        changed,
        metrics,
    )
    host.keeper.on_lost = jobs.lease_lost
    pace = Pace(
        config.token_budget,
        config.step_stretch,
        config.prompt_step_ms / 1000,
        is_in_chunks=config.is_chunking_prompts,
    )
    steps = DecodeSteps(
        host, grants, drafts, pace, metrics, jobs, is_continuous=config.is_batching_continuously
    )
    jobs.steps = steps
    metrics.watch(jobs.sequences, host.engine)
    metrics.steps.activities.count = lambda: (steps.num_stepped, book.num_held)

    def leave() -> None:
        jobs.is_draining = True
        reporter.drain()

    draining = Draining(leave, lambda: jobs.num_held)
    return DecodeParts(host, token_bus, grants, drafts, publisher, jobs, steps, reporter, draining)


async def _drafts(config: DecodeConfig, bus: Bus, host: WorkerHost) -> Drafts | None:
    if config.speculation == "off" or config.max_num_draft_tokens == 0:
        return None
    policy = DraftPolicy(config.max_num_draft_tokens)
    if config.draft_place == "draft":
        budget_s = config.draft_budget_ms / 1000
        vocab_size = host.engine.runner.vocab_size
        fingerprint = tokenizer_fingerprint(host.model.directory)
        return DraftClient(bus, policy, budget_s, vocab_size, fingerprint)
    if config.draft_kind == "ngram":
        return LocalDrafts(policy)
    return await asyncio.to_thread(_open_model_drafts, config, host, policy)


def _open_model_drafts(config: DecodeConfig, host: WorkerHost, policy: DraftPolicy) -> Drafts:
    # Imported here: who drafts with n-grams has no use for it.
    from slipstream.services.decode.model_drafts import ModelDrafts  # noqa: PLC0415 - only workers that draft with a model load it
    from slipstream.shared.drafting.opening import open_drafter  # noqa: PLC0415 - only workers that draft with a model load it

    drafter = open_drafter(host.model, config, host.engine.runner)
    return ModelDrafts(policy, drafter, host.engine)
