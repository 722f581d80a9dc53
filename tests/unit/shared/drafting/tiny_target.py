"""A random model small enough to be packed, asked and learned from within a test."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from slipstream.shared.model.fake_model import write_fake_model

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 128, 2, 1, 64, 192, 4


def write_target(directory: Path, *, seed: int = 0) -> Path:
    """Write a model of the fake model's tokens with weights of chance; return its directory."""
    write_fake_model(directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "max_position_embeddings": 1024,
    }
    (directory / "config.json").write_text(json.dumps(config))
    generator = np.random.default_rng(seed)

    def matrix(num_outputs: int, num_inputs: int) -> np.ndarray:
        values = generator.standard_normal((num_outputs, num_inputs)) / np.sqrt(num_inputs)
        return values.astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer_idx in range(LAYERS):
        prefix = f"model.layers.{layer_idx}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = np.ones(HIDDEN, np.float32)
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        for name, shape in shapes.items():
            tensors[f"{prefix}{name}.weight"] = matrix(*shape)
    for path in (directory / "model.safetensors", directory / "slipstream.json"):
        path.unlink(missing_ok=True)
    save_file(tensors, directory / "model.safetensors")
    return directory
