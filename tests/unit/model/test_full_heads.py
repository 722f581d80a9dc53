"""Heads that are not shared: the same numbers from as many times the KV."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.kernels.cpu import loader
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import ModelConfig, with_full_heads
from slipstream.shared.model.full_heads import FullHeads
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_file import PackedArrays, PackedFile
from slipstream.shared.model.runner import SequenceRows
from tests.unit.kernels.cpu.native_models import NUM_BLOCKS, TinyModel, rows, tiny_config

pytestmark = pytest.mark.skipif(
    not loader.available_levels(), reason="the native kernels were not built"
)
TOKENS = np.random.default_rng(5).integers(0, 300, 400).tolist()
TABLES = [list(range(1, 13)), list(range(20, 24))]
STEPS: list[list[SequenceRows]] = [
    [rows(TOKENS[:300], 0, TABLES[0], 1), rows(TOKENS[100:150], 0, TABLES[1], 50)],
    [rows(TOKENS[:301], 300, TABLES[0]), rows(TOKENS[100:154], 50, TABLES[1])],
]


def run(
    packed: PackedArrays, config: ModelConfig, kv_format: str, steps: Sequence[list[SequenceRows]]
) -> tuple[list[npt.NDArray[np.float32]], int]:
    """Return the logits of some steps, and the KV bytes that they moved."""
    layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, dtype=kv_format)
    arena = memoryview(np.full(layout.block_bytes * NUM_BLOCKS, 0xFF, np.uint8))
    runner = NativeRunner(loader.load(), packed, config, arena, layout, 2)
    logits = [runner.forward(step) for step in steps]
    runner.close()
    return logits, runner.counters.kv_bytes


@pytest.mark.parametrize(
    ("weight_format", "kv_format"),
    [("float32", "float32"), ("bf16", "bf16"), ("int8", "int8"), ("int4", "int8")],
)
def test_the_same_bits_come_of_heads_that_are_repeated(
    tmp_path: Path, weight_format: str, kv_format: str
) -> None:
    config = tiny_config(num_heads=6, num_kv_heads=2)
    packed = PackedFile(TinyModel.random(config).write(tmp_path / "packed", weight_format))

    shared, shared_bytes = run(packed, config, kv_format, STEPS)
    full, full_bytes = run(FullHeads(packed, config), with_full_heads(config), kv_format, STEPS)

    assert 3 * shared_bytes == full_bytes
    for one, other in zip(shared, full, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mean_key_goes_with_its_head(tmp_path: Path) -> None:
    config = tiny_config(num_heads=4, num_kv_heads=2)
    packed = {"layers.0.key_mean": np.arange(128, dtype=np.float32).reshape(2, 64)}

    mean = FullHeads(packed, config)["layers.0.key_mean"]

    assert (4, 64) == mean.shape
    assert [0, 0, 64, 64] == mean[:, 0].tolist()
