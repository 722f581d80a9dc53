"""Engines with a filled KV cache, ready to be timed, and the bytes that their steps read."""

import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.measure.engine_cells import Cell, Workload
from slipstream.shared.measure.measured_machine import native_library
from slipstream.shared.measure.roofline import ModelSizes
from slipstream.shared.model.config import ModelConfig, load_config, model_fingerprint
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_file import PackedFile
from slipstream.shared.model.packed_weights import open_packed
from slipstream.shared.model.runner import ModelRunner, SequenceRows
from slipstream.shared.model.store import resolve_model

TORCH = "torch"  # stands for a weight format: plain torch in float32
_EMBEDDING = "embedding"
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EngineFormat:
    """What an engine computes in, and how."""

    weights: str  # the format of packed weights, or TORCH
    kv: str
    is_fused: bool = True  # one call runs all of a step; plain torch has one for each operation

    @property
    def name(self) -> str:
        """For people."""
        way = "" if self.is_fused or self.weights == TORCH else " unfused"
        return f"{self.weights}{way}, KV {self.kv}"


@dataclass(frozen=True, slots=True)
class BenchedModel:
    """A model directory that was read."""

    directory: Path
    config: ModelConfig
    fingerprint: str
    cache_dir: Path

    @classmethod
    def open(cls, spec: str, cache_dir: Path, *, report: Report) -> "BenchedModel":
        """Find it, fetching it first where needed. Raises ModelError."""
        directory = resolve_model(spec, cache_dir, report=report)
        return cls(directory, load_config(directory), model_fingerprint(directory), cache_dir)


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine whose cache holds the workload."""

    format: EngineFormat
    runner: ModelRunner
    weight_bytes: int  # that a step reads
    kv_bytes_per_token: int

    def num_bytes(self, cell: Cell) -> int:
        """Return what a step reads: all weights once, and the KV of every position."""
        return self.weight_bytes + cell.num_positions * self.kv_bytes_per_token

    def step_ms(self, batch: Sequence[SequenceRows], num_warm: int) -> float:
        """Time a step that follows so many like it, as steps do."""
        for _ in range(num_warm):
            self.runner.forward(batch)
        started = time.perf_counter()
        self.runner.forward(batch)
        return (time.perf_counter() - started) * 1000


def weight_bytes_of(packed: PackedFile) -> int:
    """
    Return the packed bytes that a step reads: matrices, scales, sums, norms, head.

    Of an embedding that is not the head it looks up a few rows, which don't count.
    """
    return sum(packed[name].nbytes for name in packed.names if name != _EMBEDDING)


@contextmanager
def opened_engines(
    model: BenchedModel,
    formats: Sequence[EngineFormat],
    workload: Workload,
    num_threads: int,
    *,
    report: Report,
) -> Iterator[list[Engine]]:
    """Open the engines and fill their caches; they end with the block."""
    _check_memory(sum(_layout(model.config, each).block_bytes for each in formats), workload)
    with ExitStack() as stack:
        engines = []
        for each in formats:
            engine = _open_engine(model, each, workload.num_blocks, num_threads, report)
            stack.callback(engine.runner.close)
            report(f"filling the KV cache ({each.name})")
            workload.fill(engine.runner)
            engines.append(engine)
        yield engines


def _check_memory(bytes_per_block: int, workload: Workload) -> None:
    needed = bytes_per_block * workload.num_blocks
    available = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    if needed > available:
        raise ConfigurationError(
            f"the KV cache takes {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free; "
            "take a smaller --batch or --context, or fewer formats at once"
        )


def _layout(config: ModelConfig, engine_format: EngineFormat) -> KvLayout:
    return KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, dtype=engine_format.kv)


def _open_engine(
    model: BenchedModel,
    engine_format: EngineFormat,
    num_blocks: int,
    num_threads: int,
    report: Report,
) -> Engine:
    layout = _layout(model.config, engine_format)
    # Shared memory, as workers have it.
    arena = memoryview(mmap.mmap(-1, layout.block_bytes * num_blocks))
    if engine_format.weights == TORCH:
        runner = _torch_runner(model, arena, layout, num_blocks, num_threads)
        weight_bytes = int(ModelSizes.of(model.config).weight_bytes("float32"))
    else:
        packed = open_packed(
            *(model.directory, model.config, model.fingerprint, engine_format.weights),
            model.cache_dir,
            report=report,
        )
        weight_bytes = weight_bytes_of(packed)
        runner = _native_runner(
            model, packed, arena, layout, num_threads, is_fused=engine_format.is_fused
        )
    return Engine(engine_format, runner, weight_bytes, layout.bytes_per_token)


def _native_runner(
    model: BenchedModel,
    packed: PackedFile,
    arena: memoryview,
    layout: KvLayout,
    num_threads: int,
    *,
    is_fused: bool,
) -> ModelRunner:
    return NativeRunner(
        *(native_library(), packed, model.config, arena, layout, num_threads), is_fused=is_fused
    )


def _torch_runner(
    model: BenchedModel, arena: memoryview, layout: KvLayout, num_blocks: int, num_threads: int
) -> ModelRunner:
    # torch costs seconds and 150 MB: only who asks for it pays.
    from slipstream.shared.model.torch_runner import TorchRunner  # noqa: PLC0415 - loads torch

    return TorchRunner(model.directory, model.config, arena, layout, num_blocks, num_threads)
