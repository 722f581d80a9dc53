"""The wall, against numbers from textbooks and from a sheet of paper."""

import numpy as np
import pytest

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.measure.hardware import HARDWARE, named_hardware
from slipstream.shared.measure.roofline import (
    SEVEN_BILLION,
    Hardware,
    ModelSizes,
    Wall,
    decode_step,
    prefill_step,
)
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packed_weights import matrices

_CONFIG = ModelConfig(
    name="tiny",
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=64,
    max_context_length=128,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
_SIZES = ModelSizes.of(_CONFIG)
# Reads 1 byte in the time of 10 operations.
_SLOW_MEMORY = Hardware("slow memory", 1e9, {"float32": 1e10, "int8": 4e10})


def test_the_textbook_case_comes_out() -> None:
    """
    7B parameters in FP16 on an A100-80G, one sequence.

    14 GFLOP in 0.045 ms at 312 TFLOP/s, 14 GB in 7 ms at 2 TB/s. The textbook divides the rounded
    times, 7 / 0.045 = 155; from the exact ones it is 156.
    """
    step = decode_step(SEVEN_BILLION, "float16", "float16", batch=1, context=0)
    wall = Wall.of(step, named_hardware("A100-80G"))

    assert (14e9, 14e9) == (step.operations, step.num_bytes)
    assert 0.045 == round(wall.compute_s * 1000, 3)
    assert pytest.approx(7.0) == wall.memory_s * 1000
    assert 155 == int(7 / round(wall.compute_s * 1000, 3))
    assert pytest.approx(155, abs=1.1) == wall.factor
    assert "memory" == wall.binds
    assert pytest.approx(1000 / 7) == wall.tokens_per_s


def test_weights_are_those_of_the_matrices_that_are_packed() -> None:
    """Of an embedding that is not the head, only rows are looked up: it does not count."""
    heads, hidden, inner = _CONFIG.num_heads * 8, _CONFIG.hidden_size, _CONFIG.intermediate_size
    shapes = {"model.embed_tokens.weight": (64, hidden), "lm_head.weight": (64, hidden)}
    for layer_idx in range(2):
        prefix = f"model.layers.{layer_idx}."
        shapes |= {f"{prefix}self_attn.q_proj.weight": (heads, hidden)}
        shapes |= {f"{prefix}self_attn.{part}_proj.weight": (16, hidden) for part in "kv"}
        shapes |= {f"{prefix}self_attn.o_proj.weight": (hidden, heads)}
        shapes |= {f"{prefix}mlp.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
        shapes |= {f"{prefix}mlp.down_proj.weight": (hidden, inner)}
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    packed = sum(weights.size for _, weights in matrices(tensors, _CONFIG))

    assert packed == _SIZES.num_weights


@pytest.mark.parametrize("kv_format", ["float32", "bf16", "int8"])
def test_a_position_takes_what_its_layout_says(kv_format: str) -> None:
    layout = KvLayout(2, 2, 8, dtype=kv_format)

    assert layout.bytes_per_token == _SIZES.kv_bytes_per_token(kv_format)
    assert 2 * 2 * 2 * 8 * 2 == _SIZES.kv_bytes_per_token("float16")


def test_a_decode_step_by_hand() -> None:
    """
    Three sequences at context 10.

    Layers hold (32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32) * 2 weights, the head 64 * 32. A
    (row, position) pair costs 2 * 8 for the score and 2 * 8 for the value in each of 4 heads.
    """
    step = decode_step(_SIZES, "float32", "float32", batch=3, context=10)

    num_weights = (3 * 1024 + 4608) * 2 + 2048
    assert 2 * 3 * num_weights == step.matrix_operations
    assert 3 * 10 * 2 * 4 * 32 == step.attention_operations
    assert 4 * num_weights == step.weight_bytes
    assert 3 * 10 * 2 * 2 * 2 * 8 * 4 == step.kv_bytes
    assert 3 == step.num_tokens


def test_a_prompt_meets_the_head_once_and_itself_half() -> None:
    step = prefill_step(_SIZES, "float32", "float32", num_tokens=4)

    assert 2 * (4 * 15360 + 2048) == step.matrix_operations
    assert (1 + 2 + 3 + 4) * 2 * 4 * 32 == step.attention_operations


def test_more_rows_move_a_step_from_memory_to_compute() -> None:
    """Weights are read once for all rows, so that a batch or a prompt computes more a byte."""
    walls = [
        Wall.of(decode_step(_SIZES, "float32", "float32", batch=batch, context=0), _SLOW_MEMORY)
        for batch in (1, 19, 21, 64)
    ]

    assert ["memory", "memory", "compute", "compute"] == [wall.binds for wall in walls]
    assert walls[0].step_s == walls[0].memory_s == pytest.approx(walls[0].compute_s * 20)
    assert pytest.approx(20) == walls[0].factor


def test_a_number_of_bytes_that_is_known_goes_before_the_count() -> None:
    step = decode_step(_SIZES, "int8", "int8", batch=1, context=0, weight_bytes=123.0)

    assert 123.0 == step.num_bytes


def test_numbers_without_arithmetic_are_computed_in_wider_ones() -> None:
    """On a GPU bf16 is as fast as float16, under whose name the rate stands."""
    names = ("int4", "int8", "bf16", "float16", "float32")
    rates = [_SLOW_MEMORY.rate_of(name) for name in names]

    assert [4e10, 4e10, 1e10, 1e10, 1e10] == rates
    assert 312e12 == named_hardware("A100-80G").rate_of("bf16")
    with pytest.raises(ConfigurationError, match="not for float32"):
        Hardware("integers", 1.0, {"int8": 1.0}).rate_of("float32")


def test_machines_are_known_by_name_in_any_case() -> None:
    assert named_hardware("rtx-4090") is HARDWARE["rtx-4090"] is named_hardware("RTX-4090")
    with pytest.raises(ConfigurationError, match="local, A100-80G"):
        named_hardware("abacus")
