"""The fused step against its twins, at every ISA level that this machine has."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from slipstream.kernels import reference_bf16
from slipstream.kernels.cpu import loader
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.torch_runner import TorchRunner

from .integer_twin import IntegerTwin
from .native_models import NUM_BLOCKS, TinyModel, open_runner, rows, tiny_config

LEVELS = loader.available_levels()
NAMES = ("float32", "bf16", "int8", "int4", "int4_carried")
# Of weights and KV.
FORMATS = [
    *product(NAMES[:3], repeat=2),
    *(("int4", kv) for kv in ("int8", "float32")),
    *(("int4_carried", kv) for kv in ("bf16", "int8")),
]
# For what takes long, each of both, and two pairs that differ.
FEWER_FORMATS = [
    *zip(NAMES[:3], NAMES[:3], strict=True),
    ("int8", "float32"),
    ("float32", "int8"),
    ("int4", "int8"),
    ("int4_carried", "int8"),
]
TOKENS = np.random.default_rng(1).integers(0, 300, 700).tolist()
TABLE = np.random.default_rng(2).permutation(np.arange(1, NUM_BLOCKS)).tolist()[:24]
OTHER_TABLE = [block for block in range(1, NUM_BLOCKS) if block not in TABLE][:24]


def _slow_if_portable(level: str) -> Any:  # Any: a level, or a marked one
    return pytest.param(level, marks=pytest.mark.slow) if level == "portable" else level


pytestmark = pytest.mark.skipif(not LEVELS, reason="the native kernels were not built")
Logits = npt.NDArray[np.float32]
Open = Callable[..., NativeRunner]


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return TinyModel.random(tiny_config())


@pytest.fixture(scope="module")
def open_format(model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Open:
    folder = tmp_path_factory.mktemp("packed")
    paths = {name: model.write(folder / name, name) for name in NAMES}

    def opened(weight_format: str, kv_format: str, **more: object) -> NativeRunner:
        return open_runner(paths[weight_format], model.config, kv_format, **more)  # type: ignore[arg-type]

    return opened


def whole(runner: NativeRunner, num_tokens: int = 300) -> Logits:
    """Return the logits of all positions of one prompt in one chunk."""
    return runner.forward([rows(TOKENS[:num_tokens], 0, TABLE)])


@pytest.mark.parametrize("level", LEVELS)
def test_float32_computes_what_plain_torch_computes(
    level: str, model: TinyModel, open_format: Open, tmp_path: Path
) -> None:
    save_file(model.tensors, tmp_path / "model.safetensors")
    layout = KvLayout(model.config.num_layers, model.config.num_kv_heads, 64)
    arena = bytearray(layout.block_bytes * NUM_BLOCKS)
    oracle = TorchRunner(tmp_path, model.config, memoryview(arena), layout, NUM_BLOCKS, 1)
    expected = oracle.forward([rows(TOKENS[:300], 0, TABLE)])

    found = whole(open_format("float32", "float32", level=level))

    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("formats", FORMATS)
def test_every_level_gives_the_same_bits(formats: tuple[str, str], open_format: Open) -> None:
    results = [whole(open_format(*formats, level=level), 80) for level in LEVELS]

    assert all(np.array_equal(results[0], each) for each in results[1:])


@pytest.mark.parametrize("formats", FEWER_FORMATS)
@pytest.mark.parametrize("level", [_slow_if_portable(each) for each in LEVELS])
@settings(
    max_examples=min(6, settings().max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    cuts=st.lists(st.integers(1, 299), max_size=6, unique=True),
    num_threads=st.integers(1, 3),
    strangers=st.lists(st.integers(1, 40), max_size=5),
)
def test_a_row_depends_on_nothing_but_its_own_past(
    level: str,
    formats: tuple[str, str],
    open_format: Open,
    cuts: list[int],
    num_threads: int,
    strangers: list[int],
) -> None:
    """Chunks of any size, strangers in the batch, any number of threads: the same bits."""
    expected = whole(open_format(*formats, level=level, num_threads=1))

    runner = open_format(*formats, level=level, num_threads=num_threads)
    found = []
    ends = [*sorted(cuts), 300]
    for first, end in zip([0, *ends], ends, strict=False):
        others = [
            rows(TOKENS[300 : 300 + length], 0, [OTHER_TABLE[2 * i], OTHER_TABLE[2 * i + 1]])
            for i, length in enumerate(strangers)
        ]
        batch = [*others[:2], rows(TOKENS[:end], first, TABLE), *others[2:]]
        start = sum(strangers[:2])
        found.append(runner.forward(batch)[start : start + end - first])

    assert np.array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_rest_between_steps_changes_nothing(
    level: str, formats: tuple[str, str], open_format: Open
) -> None:
    expected = whole(open_format(*formats, level=level))

    runner = open_format(*formats, level=level)
    found = []
    for first, end in ((0, 150), (150, 299), (299, 300)):
        runner.rest()
        found.append(runner.forward([rows(TOKENS[:end], first, TABLE)]))

    assert np.array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("formats", FORMATS)
def test_a_long_context_is_merged_in_one_order_however_it_is_split(
    formats: tuple[str, str], open_format: Open
) -> None:
    """600 positions are three segments: one row splits them over threads, a prompt does not."""
    expected = whole(open_format(*formats, num_threads=1), 600)

    runner = open_format(*formats, num_threads=2)
    runner.forward([rows(TOKENS[:599], 0, TABLE)])
    found = runner.forward([rows(TOKENS[:600], 599, TABLE)])

    assert np.array_equal(found[0], expected[-1])


@pytest.mark.parametrize("formats", FORMATS)
def test_logits_come_for_the_rows_that_want_them(
    formats: tuple[str, str], open_format: Open
) -> None:
    runner = open_format(*formats)
    everything = whole(runner, 40)

    last = runner.forward(
        [rows(TOKENS[:40], 30, TABLE, num_logits=2), rows(TOKENS[:9], 0, OTHER_TABLE, num_logits=0)]
    )

    assert np.array_equal(last, everything[-2:])


@pytest.mark.parametrize("formats", FORMATS)
def test_a_row_with_a_nan_stays_visible_and_alone(
    formats: tuple[str, str], model: TinyModel, tmp_path: Path
) -> None:
    """A NaN in the embedding of one token: its sequence is NaN, its neighbour as ever."""
    healthy = model.write(tmp_path / "healthy", formats[0])
    sick = model.write(tmp_path / "sick", formats[0], nan_token=300)
    neighbour = rows(TOKENS[:20], 0, TABLE)
    expected = open_runner(healthy, model.config, formats[1]).forward([neighbour])

    found = open_runner(sick, model.config, formats[1]).forward(
        [rows([300, 5], 0, OTHER_TABLE), neighbour]
    )

    assert np.isnan(found[:2]).all()
    # The sick token's own column of the output head is the only other thing that is ill.
    assert np.array_equal(found[2:, :300], expected[:, :300])


def test_bf16_weights_give_the_bits_of_float32_on_the_numbers_that_the_twin_keeps(
    model: TinyModel, open_format: Open, tmp_path: Path
) -> None:
    """Matrices, embedding and head; norms stay in float32."""
    kept = {
        name: reference_bf16.narrow(torch.from_numpy(values)).float().numpy()
        for name, values in model.tensors.items()
        if values.ndim == 2
    }
    path = TinyModel(model.config, model.tensors | kept).write(tmp_path / "kept", "float32")

    found = whole(open_format("bf16", "float32"))

    assert np.array_equal(found, whole(open_runner(path, model.config, "float32")))


def test_bf16_is_near_float32(open_format: Open) -> None:
    """A number is off by 2^-9 of itself at most; random layers make it some times as much."""
    expected = whole(open_format("float32", "float32"))

    for formats in (("bf16", "float32"), ("float32", "bf16"), ("bf16", "bf16")):
        off = np.abs(whole(open_format(*formats)) - expected)

        assert 0 < np.mean(off) < 2**-7 * np.abs(expected).max(), formats


@pytest.mark.parametrize(
    ("weight_format", "flip"), [("int8", 0.02), ("int4", 0.03), ("int4_carried", 0.02)]
)
def test_integers_compute_what_their_format_means(
    weight_format: str, flip: float, model: TinyModel, open_format: Open
) -> None:
    """
    Against the same arithmetic in float64: what differs is rounding, not the format.

    Many positions agree as float32 does. Of the others a value lay in the middle of two integers
    and became the other one, which may show as `flip` at most, and on average far less.
    """
    expected = IntegerTwin(model, weight_format).run(TOKENS[:70])

    found = whole(open_format(weight_format, "int8"), 70)

    wrong = np.abs(found - expected) / np.abs(expected).max()
    assert wrong.max() < flip
    assert wrong.mean() < 2e-3
    assert np.mean(wrong.max(axis=1) < 1e-5) > 0.1
