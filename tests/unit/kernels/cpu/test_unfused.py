"""The unfused step beside the fused one: the same bits, by the same kernels."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from slipstream.kernels.cpu import loader
from slipstream.shared.model.native_runner import NativeRunner

from .native_models import NUM_BLOCKS, TinyModel, open_runner, rows, tiny_config

LEVELS = loader.available_levels()
NAMES = ("float32", "bf16", "int8", "int4", "int4_carried")
# Of weights and KV.
FORMATS = [*product(NAMES[:3], repeat=2), ("int4", "int8"), ("int4_carried", "int8")]
TOKENS = np.random.default_rng(1).integers(0, 300, 400).tolist()
SCATTERED = np.random.default_rng(2).permutation(np.arange(1, NUM_BLOCKS))
TABLES = [part.tolist() for part in np.split(SCATTERED[:40], 4)]
# One after the other, on what those before it wrote.
STEPS = [
    # Prompts in one chunk, one that splits its segments over threads among them.
    [rows(TOKENS[:270], 0, TABLES[0], 1), rows(TOKENS[50:85], 0, TABLES[1], 35)],
    # Decode: two rows are quantized by every thread of the fused step, one row is split by segment.
    [rows(TOKENS[:271], 270, TABLES[0])],
    [rows(TOKENS[:272], 271, TABLES[0]), rows(TOKENS[50:86], 35, TABLES[1])],
    # Rows to verify, a chunk without logits, and a decode row.
    [
        rows(TOKENS[:277], 272, TABLES[0]),
        rows(TOKENS[200:240], 0, TABLES[2], 0),
        rows(TOKENS[50:87], 36, TABLES[1]),
    ],
    # A chunk that no one wants logits of.
    [rows(TOKENS[300:333], 0, TABLES[3], 0)],
]

pytestmark = pytest.mark.skipif(not LEVELS, reason="the native kernels were not built")
Open = Callable[..., NativeRunner]


@pytest.fixture(scope="module")
def open_format(tmp_path_factory: pytest.TempPathFactory) -> Open:
    model = TinyModel.random(tiny_config())
    folder = tmp_path_factory.mktemp("packed")
    paths = {name: model.write(folder / name, name) for name in NAMES}

    def opened(weight_format: str, kv_format: str, **more: object) -> NativeRunner:
        return open_runner(paths[weight_format], model.config, kv_format, **more)  # type: ignore[arg-type]

    return opened


@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize(
    ("level", "num_threads"),
    [*((level, 2) for level in LEVELS), *((level, n) for level in LEVELS[:1] for n in (1, 3))],
)
def test_unfused_steps_give_the_bits_of_fused_ones(
    level: str, formats: tuple[str, str], num_threads: int, open_format: Open
) -> None:
    """Logits of every step, and every byte of the cache."""
    fused = open_format(*formats, level=level)
    unfused = open_format(*formats, level=level, num_threads=num_threads, is_fused=False)

    for step in STEPS:
        expected = fused.forward(step)
        found = unfused.forward(step)

        assert np.isfinite(found).all()
        assert np.array_equal(found, expected)
    assert np.array_equal(unfused._kv, fused._kv)


def test_one_engine_takes_both(open_format: Open) -> None:
    """Each leaves the buffers as the other needs them."""
    runner = open_format("int8", "int8")
    expected = [runner.forward(step) for step in STEPS]

    for is_fused in (False, True, False):
        runner._is_fused = is_fused
        for step, logits in zip(STEPS, expected, strict=True):
            assert np.array_equal(runner.forward(step), logits)
