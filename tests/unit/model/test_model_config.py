"""What config.json says is read in old and new spelling; what can't be served is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from slipstream.shared.errors import ModelError
from slipstream.shared.model.config import load_config, model_fingerprint

BASE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "eos_token_id": 2,
}


def write(directory: Path, *, generation: dict[str, Any] | None = None, **changes: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(BASE | changes))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def test_sizes_are_read_and_missing_ones_derived(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, num_key_value_heads=None))

    assert (4, 4, 16, 256) == (
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.max_context_length,
    )
    assert tmp_path.name == config.name


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
    ],
)
def test_rope_theta_is_read_in_every_spelling(tmp_path: Path, spelling: dict[str, Any]) -> None:
    assert 5e5 == load_config(write(tmp_path, **spelling)).rope_theta


def test_generation_config_wins_and_gives_sampling_defaults(tmp_path: Path) -> None:
    generation = {"eos_token_id": [2, 7], "temperature": 0.6, "top_p": 0.9, "top_k": 40}

    config = load_config(write(tmp_path, generation=generation))

    assert (2, 7) == config.eos_token_ids
    assert (0.6, 0.9, 40) == (config.temperature, config.top_p, config.top_k)


def test_without_generation_config_the_defaults_are_neutral(tmp_path: Path) -> None:
    config = load_config(write(tmp_path))

    assert (1.0, 1.0, 0) == (config.temperature, config.top_p, config.top_k)
    assert (2,) == config.eos_token_ids


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt_neox"}, "gpt_neox"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "llama3"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"head_dim": 15}, "head_dim"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_what_cannot_be_served_is_named(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        load_config(write(tmp_path, **changes))


def test_a_window_as_long_as_the_context_does_not_matter(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, model_type="mistral", sliding_window=256)).num_layers == 2


def test_missing_or_broken_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        load_config(tmp_path)


def test_hub_snapshot_is_named_after_its_repository(tmp_path: Path) -> None:
    directory = tmp_path / "models--org--name" / "snapshots" / "0123abc"
    directory.mkdir(parents=True)

    assert "org/name" == load_config(write(directory)).name


def test_fingerprint_changes_with_config_tokenizer_and_weights(tmp_path: Path) -> None:
    write(tmp_path)
    weights = {"a": np.zeros((300, 300), np.float32)}
    save_file(weights, tmp_path / "model.safetensors")
    seen = [model_fingerprint(tmp_path)]
    assert seen[0] == model_fingerprint(tmp_path)

    write(tmp_path, vocab_size=101)
    seen.append(model_fingerprint(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    seen.append(model_fingerprint(tmp_path))
    weights["a"] += 1  # a fine-tune: same header, same size
    save_file(weights, tmp_path / "model.safetensors")
    seen.append(model_fingerprint(tmp_path))

    assert 4 == len(set(seen))


def test_fingerprint_of_a_cut_weight_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)

    with pytest.raises(ModelError, match="safetensors"):
        model_fingerprint(tmp_path)
