"""The engine that runs a worker's model: native kernels, plain torch, or fake."""

import structlog

from slipstream.kernels.cpu.loader import NativeLibrary, NativeUnavailableError, load
from slipstream.shared.config import WorkerConfig
from slipstream.shared.cores import num_cores
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.arena import Arena
from slipstream.shared.model.aborting_runner import AbortingRunner
from slipstream.shared.model.config import load_config
from slipstream.shared.model.faulty_runner import FaultyRunner
from slipstream.shared.model.formats import native_gap
from slipstream.shared.model.full_heads import FullHeads
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_file import PackedArrays
from slipstream.shared.model.packed_weights import open_packed
from slipstream.shared.model.runner import ModelRunner
from slipstream.shared.worker.model_source import ServedModel

log = structlog.get_logger()

CORE_LEDGER = "cores"  # beside the arena: its workers compute on the same cores


def open_runner(model: ServedModel, config: WorkerConfig, arena: Arena) -> ModelRunner:
    """Load the weights and bind the engine to the arena. Blocks."""
    runner = _open_runner(model, config, arena)
    if config.nan_token_id is not None:
        runner = FaultyRunner(runner, config.nan_token_id)
    if config.abort_token_id is not None:
        runner = AbortingRunner(runner, config.abort_token_id)
    return runner


def _open_runner(model: ServedModel, config: WorkerConfig, arena: Arena) -> ModelRunner:
    if config.engine == "fake":
        return _fake_runner(model, config, arena)
    library = None if config.engine == "torch" else _library(model, config)
    if library is None:
        return _torch_runner(model, config, arena)
    own_config = load_config(model.directory)
    packed: PackedArrays = open_packed(
        model.directory,
        own_config,
        model.fingerprint,
        model.weight_format,
        config.cache_dir,
        report=lambda line: log.info("model", step=line),
    )
    if model.config.num_kv_heads != own_config.num_kv_heads:
        packed = FullHeads(packed, own_config)
    num_threads = config.num_threads or num_cores()
    runner = NativeRunner(
        library,
        packed,
        model.config,
        arena.blocks,
        model.layout,
        num_threads,
        is_fused=config.is_fused,
    )
    is_sharing = config.is_sharing_cores and runner.share_cores(config.arena_dir / CORE_LEDGER)
    log.info(
        "native_kernels", level=library.level, num_threads=num_threads, shares_cores=is_sharing
    )
    return runner


def _library(model: ServedModel, config: WorkerConfig) -> NativeLibrary | None:
    """Return the native kernels; None where the reference can stand in, with one clear warning."""
    try:
        _check_model(model)
        return load(config.isa)
    except NativeUnavailableError as error:
        is_float32 = (model.weight_format, model.layout.dtype) == ("float32", "float32")
        if config.engine == "native" or config.isa is not None or not is_float32:
            raise ConfigurationError(
                f"{error}; take --engine torch in float32, or install with a C++ compiler if there"
                " was none"
            ) from error
        log.warning("native_kernels_missing", reason=str(error), engine="torch")
        return None


def _check_model(model: ServedModel) -> None:
    gap = native_gap(model.config)
    if gap is not None:
        raise NativeUnavailableError(f"no native kernels for {model.name}: {gap}")


def _fake_runner(model: ServedModel, config: WorkerConfig, arena: Arena) -> ModelRunner:
    # Imported here, as below: what it needs of numpy takes a megabyte.
    from slipstream.shared.model.fake_runner import FakeCosts, FakeRunner  # noqa: PLC0415 - loaded only where this engine is asked for

    costs = FakeCosts(config.fake.step_ms, config.fake.row_us, config.fake.context_token_ns)
    return FakeRunner(arena.blocks, model.layout, arena.num_blocks, costs)


def _torch_runner(model: ServedModel, config: WorkerConfig, arena: Arena) -> ModelRunner:
    # torch costs seconds and 150 MB: only a worker of the reference path pays.
    from slipstream.shared.model.torch_runner import TorchRunner  # noqa: PLC0415 - loaded only where this engine is asked for

    return TorchRunner(
        model.directory,
        model.config,
        arena.blocks,
        model.layout,
        arena.num_blocks,
        config.num_threads or 1,
    )
