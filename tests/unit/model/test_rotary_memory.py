"""Rotary tables filled as contexts grow are the tables made at once, bit for bit."""

import numpy as np
import pytest

from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packing import rotary_tables
from slipstream.shared.model.rotary_memory import RotaryMemory


@pytest.mark.parametrize("head_dim", [64, 128, 6])
@pytest.mark.parametrize("reached", [[1], [3, 512, 513], [8000, 20], [1000, 5000, 8190]])
def test_tables_are_those_made_at_once(head_dim: int, reached: list[int]) -> None:
    config = model(head_dim)
    memory = RotaryMemory(config)
    where = memory.cosines.ctypes.data

    for num_positions in reached:
        memory.reach(num_positions)

    wanted = rotary_tables(head_dim, config.rope_theta, config.max_context_length)
    num_positions = max(reached)
    for made, whole in zip((memory.cosines, memory.sines), wanted, strict=True):
        assert whole.shape == made.shape
        assert np.array_equal(whole[:num_positions], made[:num_positions])
    assert where == memory.cosines.ctypes.data


def test_what_no_context_has_reached_is_not_filled() -> None:
    memory = RotaryMemory(model(64))

    memory.reach(100)

    assert memory.cosines[100].any()
    assert not memory.cosines[2000:].any()


def model(head_dim: int) -> ModelConfig:
    return ModelConfig(
        name="m",
        num_layers=1,
        hidden_size=head_dim,
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_dim,
        intermediate_size=1,
        vocab_size=1,
        max_context_length=8190,
        rope_theta=100_000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
