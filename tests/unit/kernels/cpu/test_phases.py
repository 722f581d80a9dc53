"""A step says what its time goes into, and which bytes it has to move."""

import time
from pathlib import Path

import numpy as np
import pytest

from slipstream.kernels.cpu import loader
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_file import PackedFile

from .native_models import TinyModel, open_runner, rows, tiny_config

pytestmark = pytest.mark.skipif(
    not loader.available_levels(), reason="the native kernels were not built"
)
TOKENS = np.random.default_rng(3).integers(0, 300, 600).tolist()
TABLE = list(range(1, 20))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel.random(tiny_config()).write(tmp_path_factory.mktemp("packed") / "int8", "int8")


def opened(path: Path, **more: object) -> NativeRunner:
    return open_runner(path, tiny_config(), "int8", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("level", loader.available_levels())
def test_phases_make_up_the_time_of_steps(path: Path, level: str, *, is_fused: bool) -> None:
    """A prompt that is split by rows, then decoding, whose attention looks at all of it."""
    runner = opened(path, level=level, is_fused=is_fused)
    runner.forward([rows(TOKENS[:576], 0, TABLE, 1)])
    before = runner.counters.seconds
    started = time.perf_counter()
    for num_tokens in range(577, 597):
        runner.forward([rows(TOKENS[:num_tokens], num_tokens - 1, TABLE)])
    taken_s = time.perf_counter() - started

    weights_s, kv_s, arithmetic_s, cores_s = (
        now - then for now, then in zip(runner.counters.seconds, before, strict=True)
    )
    assert min(weights_s, kv_s, arithmetic_s) > 0
    # No cores are shared; what is missing is Python's part, which a tiny model doesn't hide.
    assert cores_s < 0.01 * taken_s
    assert 0.3 * taken_s < weights_s + kv_s + arithmetic_s <= taken_s
    runner.close()


def test_attention_over_more_positions_takes_more_of_the_time(path: Path) -> None:
    def share_of_kv(context: int) -> float:
        runner = opened(path, num_threads=1)
        runner.forward([rows(TOKENS[:context], 0, TABLE, 1)])
        before = runner.counters.seconds
        for _ in range(30):
            runner.forward([rows(TOKENS[: context + 1], context, TABLE)])
        spent = [now - then for now, then in zip(runner.counters.seconds, before, strict=True)]
        runner.close()
        return spent[1] / sum(spent)

    assert share_of_kv(590) > 2 * share_of_kv(2)


def test_bytes_are_those_of_the_matrices_and_of_the_kv_in_sight(path: Path) -> None:
    runner = opened(path)
    packed = PackedFile(path)
    matrices = {name: packed[name].nbytes for name in packed.names if name.endswith(".weights")}
    all_bytes, head_bytes = sum(matrices.values()), matrices["head.weights"]
    # Two layers, two KV heads: keys and values of 64 bytes, each with a scale.
    per_token = 2 * 2 * 2 * (64 + 4)

    runner.forward([rows(TOKENS[:40], 0, TABLE[:2], 0)])
    assert all_bytes - head_bytes == runner.counters.weight_bytes
    assert (40 + 40) * per_token == runner.counters.kv_bytes

    runner.forward([rows(TOKENS[:41], 40, TABLE[:2]), rows(TOKENS[:7], 0, TABLE[2:3], 1)])
    assert 2 * all_bytes - head_bytes == runner.counters.weight_bytes
    assert (40 + 40 + 41 + 1 + 7 + 7) * per_token == runner.counters.kv_bytes
    runner.close()
