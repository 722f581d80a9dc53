"""The engine that runs a worker's model. torch loads only where it runs."""

from slipstream.shared.config import WorkerConfig
from slipstream.shared.kv.arena import Arena
from slipstream.shared.model.fake_runner import FakeCosts, FakeRunner
from slipstream.shared.model.runner import ModelRunner
from slipstream.shared.worker.model_source import ServedModel


def open_runner(model: ServedModel, config: WorkerConfig, arena: Arena) -> ModelRunner:
    """Load the weights and bind the engine to the arena. Blocks."""
    if config.engine == "fake":
        costs = FakeCosts(config.fake.step_ms, config.fake.row_us, config.fake.context_token_ns)
        return FakeRunner(arena.blocks, model.layout, arena.num_blocks, costs)
    # torch costs seconds and 150 MB: only a worker of the reference path pays.
    from slipstream.shared.model.torch_runner import TorchRunner  # noqa: PLC0415

    return TorchRunner(
        model.directory,
        model.config,
        arena.blocks,
        model.layout,
        arena.num_blocks,
        config.num_threads,
    )
