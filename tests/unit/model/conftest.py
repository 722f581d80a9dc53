"""Small models for tests: GGUF files made with the format's own writer, the fake tokenizer."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.tokenizer import Tokenizer

NUM_LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 2, 64, 4, 2, 16, 96
TOKENS = [*"abcdefgh", "Ġ", "ab", "<|im_start|>", "<|im_end|>"]
TYPES = [1] * 10 + [3, 3]


@pytest.fixture
def write_gguf() -> Callable[..., dict[str, np.ndarray]]:
    """The function below: a test module can't import its neighbours."""
    return _write_gguf


@pytest.fixture(scope="session")
def fake_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_model(tmp_path_factory.mktemp("fake") / "fake")


@pytest.fixture(scope="session")
def fake_tokenizer(fake_dir: Path) -> Tokenizer:
    return Tokenizer(fake_dir)


def _write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    pre: str = "smollm",
    without: str = "",
    extra: dict[str, tuple[int, ...]] | None = None,
    norms: float | None = None,
    num_heads: int = HEADS,
) -> dict[str, np.ndarray]:
    """Write a model of two layers in Q8_0 and return its tensors as dequantized float32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(10)
    writer.add_eos_token_id(11)
    writer.add_chat_template("{{ messages[0].content }}")
    tensors = {}
    generator = np.random.default_rng(0)
    for name, shape in {**_shapes(), **(extra or {})}.items():
        if name == without:
            continue
        data = generator.standard_normal(shape, np.float32)
        if len(shape) == 1:
            if norms is not None:
                data[:] = norms
            writer.add_tensor(name, data)
            tensors[name] = data
            continue
        kind = gguf.GGMLQuantizationType.Q8_0
        packed = gguf.quants.quantize(data, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
        tensors[name] = gguf.quants.dequantize(packed, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), HIDDEN)}
    for layer_idx in range(NUM_LAYERS):
        layer = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        shapes |= {f"blk.{layer_idx}.{name}.weight": shape for name, shape in layer.items()}
    shapes["output_norm.weight"] = (HIDDEN,)
    return shapes
