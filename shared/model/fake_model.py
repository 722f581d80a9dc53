"""A model directory without weights, for the engine that only pretends to compute."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

# Their ids follow the 256 bytes.
_SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_fake_model(directory: Path) -> Path:
    """Write a tiny llama-shaped configuration and a tokenizer with one token a byte."""
    directory.mkdir(parents=True, exist_ok=True)
    _byte_tokenizer().save(str(directory / "tokenizer.json"))
    eos_token_id = 256 + _SPECIAL_TOKENS.index("<|im_end|>")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 16,
        "vocab_size": 256 + len(_SPECIAL_TOKENS),
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "eos_token_id": eos_token_id,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "chat_template": _CHAT_TEMPLATE,
    }
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": eos_token_id},
        "tokenizer_config.json": tokenizer_config,
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return directory


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {character: token_id for token_id, character in enumerate(alphabet)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL_TOKENS])
    return tokenizer
