"""Turn a GGUF file of the llama family into a Hugging Face model directory in float32."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.shared.errors import ModelError
from slipstream.shared.model.gguf_file import GgufFile, open_gguf
from slipstream.shared.model.gguf_tokenizer import (
    build_tokenizer,
    special_token_id,
    tokenizer_config,
)
from slipstream.shared.model.safetensors_file import write_float32

Report = Callable[[str], None]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(path: Path, model_dir: Path, *, report: Report) -> None:
    """Write config, tokenizer and dequantized weights into the existing directory."""
    file = open_gguf(path)
    config = _config(file)
    tokenizer = build_tokenizer(file)
    if tokenizer.get_vocab_size() != config["vocab_size"]:
        raise ModelError(f"{path}: vocabulary and embedding differ in size")
    _write_weights(file, config, model_dir / "model.safetensors", report)
    tokenizer.save(str(model_dir / "tokenizer.json"))
    _write_json(model_dir / "tokenizer_config.json", tokenizer_config(file))
    _write_json(model_dir / "config.json", config)
    _write_json(model_dir / "generation_config.json", _generation_config(file))


def _write_json(path: Path, content: dict[str, Any]) -> None:  # a JSON object
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(file: GgufFile) -> dict[str, Any]:  # a JSON object
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{file.path}: architecture {architecture!r} is not supported, only llama")
    num_heads = _count(file, "attention.head_count")
    hidden_size = _count(file, "embedding_length")
    head_dim = _count(file, "attention.key_length", hidden_size // num_heads)
    _refuse_variants(file, head_dim)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "num_hidden_layers": _count(file, "block_count"),
        "hidden_size": hidden_size,
        "num_attention_heads": num_heads,
        "num_key_value_heads": _count(file, "attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "intermediate_size": _count(file, "feed_forward_length"),
        "vocab_size": len(file.metadata.get("tokenizer.ggml.tokens", ())),
        "max_position_embeddings": _count(file, "context_length"),
        "rms_norm_eps": _real(file, "attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": _real(file, "rope.freq_base", 10_000.0),
        },
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": special_token_id(file, "bos"),
        "eos_token_id": special_token_id(file, "eos"),
        "pad_token_id": special_token_id(file, "padding"),
    }


def _refuse_variants(file: GgufFile, head_dim: int) -> None:
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    variants = {
        f"rope scaling {scaling!r}": scaling != "none" or "rope_freqs.weight" in file.tensors,
        "a rotary dimension below head_dim": (
            _count(file, "rope.dimension_count", head_dim) != head_dim
        ),
        "a value length unlike the key length": (
            _count(file, "attention.value_length", head_dim) != head_dim
        ),
        "a mixture of experts": bool(file.metadata.get("llama.expert_count")),
        "an odd head dimension": head_dim % 2 != 0,
    }
    for what, is_present in variants.items():
        if is_present:
            raise ModelError(f"{file.path} has {what}, which is not supported")


def _count(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(f"llama.{key}", default)
    if not isinstance(value, int) or value <= 0:
        raise ModelError(f"{file.path}: llama.{key} is {value!r}, not a positive integer")
    return value


def _real(file: GgufFile, key: str, default: float | None = None) -> float:
    value = file.metadata.get(f"llama.{key}", default)
    if not isinstance(value, float) or not (math.isfinite(value) and value > 0):
        raise ModelError(f"{file.path}: llama.{key} is {value!r}, not a positive number")
    # The file holds float32: its shortest decimal is the number its makers wrote (1e-05).
    return float(str(np.float32(value)))


def _generation_config(file: GgufFile) -> dict[str, Any]:  # a JSON object
    eos = [special_token_id(file, role) for role in ("eos", "eot")]
    eos_token_ids = sorted({token_id for token_id in eos if token_id is not None})
    return {
        "bos_token_id": special_token_id(file, "bos"),
        "eos_token_id": eos_token_ids[0] if len(eos_token_ids) == 1 else eos_token_ids,
        "pad_token_id": special_token_id(file, "padding"),
    }


def _expected_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return GGUF name -> shape of every tensor that such a model has."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    vocab = (config["vocab_size"], hidden)
    layer = {
        "attn_norm": (hidden,),
        "attn_q": (q_size, hidden),
        "attn_k": (kv_size, hidden),
        "attn_v": (kv_size, hidden),
        "attn_output": (hidden, q_size),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": vocab}
    for layer_idx in range(config["num_hidden_layers"]):
        shapes |= {f"blk.{layer_idx}.{name}.weight": shape for name, shape in layer.items()}
    shapes["output_norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["output.weight"] = vocab
    return shapes


def _check_tensors(file: GgufFile, expected: dict[str, tuple[int, ...]]) -> None:
    if missing := sorted(expected.keys() - file.tensors.keys()):
        raise ModelError(f"{file.path} lacks {len(missing)} tensors, among them {missing[0]}")
    if unknown := sorted(file.tensors.keys() - expected.keys()):
        raise ModelError(f"{file.path} has tensors without a place, among them {unknown[0]}")
    for name, shape in expected.items():
        if file.tensors[name].shape != shape:
            raise ModelError(
                f"{file.path}: {name} has shape {file.tensors[name].shape}, not {shape}"
            )


def _hugging_face_name(name: str) -> str:
    top = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in top:
        return top[name]
    _, layer_idx, part, _ = name.split(".")
    return f"model.layers.{layer_idx}.{_LAYER_NAMES[part]}.weight"


def _write_weights(file: GgufFile, config: dict[str, Any], path: Path, report: Report) -> None:
    # The list of expected tensors grows with a number from the file: nothing forged gets that far.
    if config["num_hidden_layers"] > len(file.tensors):
        raise ModelError(f"{file.path} has fewer tensors than layers")
    expected = _expected_shapes(config)
    _check_tensors(file, expected)
    sources = {_hugging_face_name(name): name for name in expected}
    progress = _Progress(sum(math.prod(shape) for shape in expected.values()), report)

    def load(name: str) -> npt.NDArray[np.float32]:
        source = sources[name]
        values = file.read_float32(file.tensors[source])
        if not np.isfinite(values).all():
            raise ModelError(f"{file.path}: {source} holds numbers that are not finite")
        progress.add(values.size)
        if source.endswith(("attn_q.weight", "attn_k.weight")):
            return _to_half_rotation(values, config["head_dim"])
        return values

    write_float32(path, {name: expected[source] for name, source in sources.items()}, load)


def _to_half_rotation(values: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """
    Undo llama.cpp's order of the rows of a head.

    Its rotary embedding turns neighbours (0, 1), (2, 3); ours turns row i with row i + half.
    """
    pairs = values.reshape(-1, head_dim // 2, 2, values.shape[-1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


class _Progress:
    """Reports every tenth of the weights once."""

    def __init__(self, num_total: int, report: Report) -> None:
        self._num_total = num_total
        self._num_done = 0
        self._report = report

    def add(self, num_values: int) -> None:
        before = self._num_done * 10 // self._num_total
        self._num_done += num_values
        after = self._num_done * 10 // self._num_total
        if after > before:
            self._report(f"converting weights: {after * 10} %")
