"""A target opened by itself: its files, and an engine with KV of its own, outside of any stack."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipstream.kernels.cpu.loader import load
from slipstream.shared.config import WeightChoice
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import ModelConfig, load_config, model_fingerprint
from slipstream.shared.model.formats import Formats, choose_formats
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_file import PackedFile
from slipstream.shared.model.packed_weights import open_packed
from slipstream.shared.model.store import resolve_model
from slipstream.shared.model.tokenizer import Tokenizer

Report = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A model directory that was read, with its packed weights."""

    directory: Path
    config: ModelConfig
    fingerprint: str
    formats: Formats
    packed: PackedFile

    @classmethod
    def open(
        cls, spec: str, cache_dir: Path, weights: WeightChoice = "auto", *, report: Report
    ) -> "Target":
        """Find and map it. Raises ModelError."""
        directory = resolve_model(spec, cache_dir, report=report)
        config = load_config(directory)
        fingerprint = model_fingerprint(directory)
        formats = choose_formats(directory, config, "native", weights, "auto")
        packed = open_packed(
            *(directory, config, fingerprint, formats.weights), cache_dir, report=report
        )
        return cls(directory, config, fingerprint, formats, packed)

    @property
    def layout(self) -> KvLayout:
        """How its KV lies."""
        config = self.config
        return KvLayout(
            config.num_layers, config.num_kv_heads, config.head_dim, dtype=self.formats.kv
        )

    def tokenizer(self) -> Tokenizer:
        """Return its tokenizer."""
        return Tokenizer(self.directory)

    def runner(self, num_blocks: int, num_threads: int) -> NativeRunner:
        """Return an engine over so many blocks of its own, the null block among them."""
        layout = self.layout
        kv = memoryview(mmap.mmap(-1, layout.block_bytes * num_blocks))
        return NativeRunner(load(), self.packed, self.config, kv, layout, num_threads)
