"""Wire the parts of an active scheduler."""

import asyncio
from dataclasses import dataclass

from slipstream.services.scheduler.admission import Admission
from slipstream.services.scheduler.answers import Answers
from slipstream.services.scheduler.desk import Desk
from slipstream.services.scheduler.dispatch import Dispatcher
from slipstream.services.scheduler.front import Front
from slipstream.services.scheduler.load import Load
from slipstream.services.scheduler.metrics import SchedulerMetrics
from slipstream.services.scheduler.relay import Relay
from slipstream.services.scheduler.succession import Succession
from slipstream.services.scheduler.takeover import Takeover
from slipstream.services.scheduler.watch import Watch
from slipstream.shared.bus.bus import Bus
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.model_source import open_model


@dataclass(frozen=True)
class OpenModel:
    """What outlives a term: it takes a moment to read."""

    name: str
    admission: Admission
    block_size: int


async def open_admission(config: SchedulerConfig) -> OpenModel:
    """Read the model's configuration and tokenizer."""
    model = await asyncio.to_thread(open_model, config)
    tokenizer = await asyncio.to_thread(Tokenizer, model.directory)
    admission = Admission(config, model.name, model.config, tokenizer)
    return OpenModel(model.name, admission, model.layout.block_size)


def open_front(
    config: SchedulerConfig,
    bus: Bus,
    tracer: Tracer,
    metrics: SchedulerMetrics,
    model: OpenModel,
    succession: Succession,
) -> tuple[Front, Takeover]:
    """Wire the scheduler's parts for one term."""
    fleet = Fleet(config.prompt_window)
    answers = Answers(bus, model.name)
    dispatcher = Dispatcher(bus, tracer, model.name, succession)
    desk = Desk(config, tracer, Load(config, fleet), answers, dispatcher, model.block_size, metrics)
    watch = Watch(bus, fleet, desk, succession)
    relay = Relay(bus, succession)
    front = Front(
        bus,
        tracer,
        model.name,
        model.admission,
        answers,
        desk,
        watch,
        metrics,
        relay,
        succession,
    )
    return front, Takeover(front, dispatcher, relay, tracer)
