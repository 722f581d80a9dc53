"""Open a draft for a target: another model of the same tokens, or one made from its own layers."""

import contextlib
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog

from slipstream.kernels.cpu.loader import load
from slipstream.shared.config import MIB, DecodeConfig, DraftConfig
from slipstream.shared.cores import num_cores
from slipstream.shared.drafting.drafter import Drafter
from slipstream.shared.drafting.engine import DraftEngine
from slipstream.shared.drafting.layered import (
    LayeredWeights,
    embedding_of_head,
    is_of_bf16,
    layered_config,
)
from slipstream.shared.drafting.trained_file import TrainedDraft
from slipstream.shared.errors import ConfigurationError, ModelError
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import ModelConfig, load_config, model_fingerprint
from slipstream.shared.model.fake_runner import FakeRunner
from slipstream.shared.model.formats import choose_formats, native_gap
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_file import Array, PackedArrays, PackedFile
from slipstream.shared.model.packed_weights import open_packed
from slipstream.shared.model.row_passes import TokenIds
from slipstream.shared.model.runner import ModelRunner
from slipstream.shared.model.store import resolve_model
from slipstream.shared.model.vocabulary import tokenizer_fingerprint
from slipstream.shared.worker.model_source import ServedModel

log = structlog.get_logger()

SHIPPED = Path(__file__).parent / "trained"
_MIN_BLOCKS = 2  # the null block and one more


@dataclass(frozen=True)
class _Options:
    """With what a draft computes."""

    spec: str
    memory_bytes: int
    num_threads: int
    isa: str | None
    cache_dir: Path
    sharing: NativeRunner | None  # the target's, in one process: its threads are taken


def open_drafter(
    target: ServedModel, config: DecodeConfig | DraftConfig, runner: ModelRunner | None = None
) -> Drafter:
    """
    Load a draft for a target, in whose process it computes if there is its runner. Blocks.

    Raises ModelError, ConfigurationError.
    """
    options = _Options(
        config.draft_model,
        config.draft_memory_mib * MIB,
        config.num_threads or num_cores(),
        config.isa,
        config.cache_dir,
        runner if isinstance(runner, NativeRunner) else None,
    )
    open_engine = _open_model if config.draft_kind == "model" else _open_layers
    return Drafter(open_engine(target, options), takes_ngrams=config.draft_kind == "auto")


def find_trained(target: ServedModel, spec: str) -> TrainedDraft:
    """Return the trained draft of a file, or the shipped one. Raises ConfigurationError."""
    path = Path(spec) if spec else SHIPPED / f"{target.name}.safetensors"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in SHIPPED.glob("*.safetensors"))) or "none"
        raise ConfigurationError(
            f"there is no trained draft {path} for {target.name} (shipped: {known}); make one with "
            f"slipstream draft train --model {target.name} --out FILE and name it by --draft-model"
        )
    trained = TrainedDraft.read(path)
    if trained.origin.fingerprint != target.fingerprint:
        raise ConfigurationError(
            f"the draft {path.name} was made from {trained.origin.model} "
            f"({trained.origin.fingerprint}), not from {target.name} ({target.fingerprint}); "
            f"make one with slipstream draft train --model {target.name}"
        )
    return trained


def _open_layers(target: ServedModel, options: _Options) -> DraftEngine:
    trained = find_trained(target, options.spec)
    _check_native(target.name, target.config)
    packed = _packed(target, options.cache_dir)
    weights = LayeredWeights(packed, _embedding(packed, target.directory), trained)
    config = layered_config(target.config, trained)
    layout = KvLayout(
        config.num_layers, config.num_kv_heads, config.head_dim, dtype=target.layout.dtype
    )
    return _engine(weights, config, layout, options, trained.head_token_ids.astype(np.int64))


def _open_model(target: ServedModel, options: _Options) -> DraftEngine:
    directory = resolve_model(options.spec, options.cache_dir, report=_report)
    theirs, ours = (tokenizer_fingerprint(each) for each in (directory, target.directory))
    if theirs != ours:
        raise ConfigurationError(
            f"the draft {options.spec} (tokenizer {theirs}) does not speak of the tokens of "
            f"{target.name} (tokenizer {ours}); take a --draft-model with the same tokenizer.json"
        )
    config = load_config(directory)
    if target.layout.kind == "fake":
        return _fake_engine(config, options)
    _check_native(options.spec, config)
    formats = choose_formats(directory, config, "native", "auto", "auto")
    fingerprint = model_fingerprint(directory)
    packed = open_packed(
        *(directory, config, fingerprint, formats.weights), options.cache_dir, report=_report
    )
    layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, dtype=formats.kv)
    return _engine(packed, config, layout, options)


def _embedding(packed: PackedFile, model_dir: Path) -> Array:
    """Return the whole embedding, of which each token reads a row: mapped, if that can be."""
    own = packed.get("embedding")
    if own is not None:
        return own
    path = model_dir / "model.safetensors"
    if not is_of_bf16(packed) and path.is_file():
        with contextlib.suppress(ModelError, KeyError):
            found = PackedFile(path)["model.embed_tokens.weight"]
            if found.dtype == np.float32:
                return found
    return embedding_of_head(packed)


def _packed(target: ServedModel, cache_dir: Path) -> PackedFile:
    return open_packed(
        *(target.directory, target.config, target.fingerprint, target.weight_format),
        cache_dir,
        report=_report,
    )


def _engine(
    weights: PackedArrays,
    config: ModelConfig,
    layout: KvLayout,
    options: _Options,
    known_token_ids: TokenIds | None = None,
) -> DraftEngine:
    num_blocks = _num_blocks(layout, options.memory_bytes)
    kv = memoryview(mmap.mmap(-1, layout.block_bytes * num_blocks))
    runner = NativeRunner(
        *(load(options.isa), weights, config, kv, layout, options.num_threads),
        sharing=options.sharing,
    )
    log.info("draft_opened", model=config.name, num_layers=config.num_layers)
    return DraftEngine(runner, num_blocks, config.max_context_length, known_token_ids)


def _fake_engine(config: ModelConfig, options: _Options) -> DraftEngine:
    layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, kind="fake")
    num_blocks = _num_blocks(layout, options.memory_bytes)
    runner: ModelRunner = FakeRunner(
        memoryview(mmap.mmap(-1, layout.block_bytes * num_blocks)), layout, num_blocks
    )
    return DraftEngine(runner, num_blocks, config.max_context_length)


def _num_blocks(layout: KvLayout, memory_bytes: int) -> int:
    num_blocks = memory_bytes // layout.block_bytes
    if num_blocks < _MIN_BLOCKS:
        least = -(-_MIN_BLOCKS * layout.block_bytes // 2**20)
        raise ConfigurationError(
            f"--draft-memory-mib is {memory_bytes // MIB}; the draft needs at least {least}"
        )
    return num_blocks


def _check_native(name: str, config: ModelConfig) -> None:
    gap = native_gap(config)
    if gap is not None:
        raise ConfigurationError(f"{name} can't draft: the native kernels don't run it ({gap})")


def _report(line: str) -> None:
    log.info("draft", step=line)
