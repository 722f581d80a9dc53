"""GGUF files become the model that Hugging Face would load; damaged ones are refused by name."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from slipstream.shared.errors import ModelError
from slipstream.shared.model.config import load_config
from slipstream.shared.model.gguf_file import open_gguf
from slipstream.shared.model.gguf_import import convert_gguf
from slipstream.shared.model.safetensors_header import read_header_bytes

Write = Callable[..., dict[str, np.ndarray]]


def convert(path: Path, directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    convert_gguf(path, directory, report=lambda _line: None)
    return directory


def test_converted_tensors_equal_those_of_transformers(tmp_path: Path, write_gguf: Write) -> None:
    """The oracle is transformers' own reading of the file, bit for bit."""
    import torch  # noqa: PLC0415 - only this test needs it
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - loads torch
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint  # noqa: PLC0415 - loads torch

    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    directory = convert(path, tmp_path / "out")
    config = LlamaConfig.from_pretrained(directory)
    with torch.device("meta"):
        shell = LlamaForCausalLM(config)
    oracle = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=shell)["tensors"]

    ours = load_file(directory / "model.safetensors")

    assert oracle.keys() == ours.keys()
    for name, values in ours.items():
        assert np.array_equal(oracle[name].numpy(), values), name


def test_rows_of_queries_and_keys_are_put_in_half_rotation_order(
    tmp_path: Path, write_gguf: Write
) -> None:
    """Row 2i of a head in the file is row i of ours, row 2i + 1 is row half + i."""
    source = write_gguf(tmp_path / "tiny.gguf")
    ours = load_file(convert(tmp_path / "tiny.gguf", tmp_path / "out") / "model.safetensors")

    stored = source["blk.1.attn_k.weight"].reshape(2, 16, 64)
    expected = np.concatenate([stored[:, 0::2], stored[:, 1::2]], axis=1).reshape(32, 64)

    assert np.array_equal(expected, ours["model.layers.1.self_attn.k_proj.weight"])
    assert np.array_equal(
        source["blk.1.attn_v.weight"], ours["model.layers.1.self_attn.v_proj.weight"]
    )


def test_directory_describes_the_model(tmp_path: Path, write_gguf: Write) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    directory = convert(tmp_path / "tiny.gguf", tmp_path / "out")

    config = load_config(directory)
    tokenizer_config = json.loads((directory / "tokenizer_config.json").read_text())

    assert (2, 64, 4, 2, 16) == (
        config.num_layers,
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
    )
    assert config.tie_word_embeddings
    assert (1e-5, (11,)) == (config.rms_norm_eps, config.eos_token_ids)
    assert "{{ messages[0].content }}" == tokenizer_config["chat_template"]


def test_untied_output_becomes_the_head(tmp_path: Path, write_gguf: Write) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", extra={"output.weight": (12, 64)})
    directory = convert(tmp_path / "tiny.gguf", tmp_path / "out")

    assert not load_config(directory).tie_word_embeddings
    assert np.array_equal(
        source["output.weight"], load_file(directory / "model.safetensors")["lm_head.weight"]
    )


def test_data_begins_on_a_cache_line(tmp_path: Path, write_gguf: Write) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    path = convert(tmp_path / "tiny.gguf", tmp_path / "out") / "model.safetensors"

    (header_length,) = struct.unpack("<Q", path.read_bytes()[:8])

    assert 0 == (8 + header_length) % 64
    with safe_open(path, "numpy") as file:
        assert {"format": "pt"} == file.metadata()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.5, 0.999])
def test_a_cut_file_is_refused(tmp_path: Path, write_gguf: Write, share: float) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        convert(path, tmp_path / "out")


def test_damaged_headers_are_refused_and_nothing_worse(tmp_path: Path, write_gguf: Write) -> None:
    """Whatever byte of the header is wrong, the answer is a model or a ModelError, and soon."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    content = path.read_bytes()
    generator = np.random.default_rng(1)
    num_refused = 0

    for position in generator.integers(0, 1500, 150):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(generator.integers(0, 8))
        path.write_bytes(damaged)
        try:
            convert(path, tmp_path / "out")
        except ModelError:
            num_refused += 1

    assert num_refused > 50


def test_a_forged_count_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "forged.gguf"
    key = b"tokenizer.ggml.tokens"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 4, 1 << 60)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 50, 1) + entry)

    with pytest.raises(ModelError, match="missing"):
        convert(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architecture": "qwen2"}, "qwen2"),
        ({"pre": "deepseek-coder"}, "deepseek-coder"),
        ({"without": "blk.1.ffn_up.weight"}, r"blk\.1\.ffn_up\.weight"),
        ({"extra": {"blk.0.attn_q.bias": (64,)}}, r"blk\.0\.attn_q\.bias"),
        ({"extra": {"rope_freqs.weight": (8,)}}, "rope scaling"),
        ({"num_heads": 8}, "attn_k"),
        ({"norms": float("nan")}, "not finite"),
    ],
)
def test_what_cannot_be_converted_is_named(
    tmp_path: Path, write_gguf: Write, changes: dict[str, Any], named: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", **changes)

    with pytest.raises(ModelError, match=named):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")


def test_progress_is_told_in_rising_tenths(tmp_path: Path, write_gguf: Write) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    lines: list[str] = []
    (tmp_path / "out").mkdir()

    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out", report=lines.append)

    assert "converting weights: 100 %" == lines[-1]
    assert len(set(lines)) == len(lines) <= 10


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["a", "Ġ", "1", "2", "3", "4"]),
        ("gpt-2", ["a", "Ġ1234"]),
        ("llama-bpe", ["a", "Ġ", "123", "4"]),
        ("qwen2", ["a", "Ġ", "1", "2", "3", "4"]),
    ],
)
def test_digits_are_split_as_the_family_does(
    tmp_path: Path, write_gguf: Write, pre: str, pieces: list[str]
) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre=pre)
    directory = convert(tmp_path / "tiny.gguf", tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    split = tokenizer.pre_tokenizer.pre_tokenize_str("a 1234")

    assert pieces == [piece for piece, _ in split]


def test_llama_3_files_get_their_bos(tmp_path: Path, write_gguf: Write) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre="llama-bpe")
    directory = convert(tmp_path / "tiny.gguf", tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    assert [10, 9] == tokenizer.encode("ab").ids
    assert [9] == tokenizer.encode("ab", add_special_tokens=False).ids


@pytest.mark.model
@pytest.mark.timeout(180)
def test_default_model_equals_transformers(model_dir: Path) -> None:
    """The directory loads in transformers, with one value per tensor as in the file."""
    import torch  # noqa: PLC0415 - only this test needs it
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - loads torch

    model = AutoModelForCausalLM.from_pretrained(model_dir)
    state = model.state_dict()
    ours = load_file(model_dir / "model.safetensors")

    assert torch.float32 == model.dtype
    assert {"lm_head.weight"} == state.keys() - ours.keys()
    assert state["lm_head.weight"] is not None
    for name, values in ours.items():
        assert np.array_equal(state[name].numpy(), values), name


def _header(num_tensors: int, values: list[bytes], tensors: list[bytes]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, num_tensors, len(values))
    return head + b"".join(values) + b"".join(tensors)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _tensor(name: str, shape: tuple[int, ...], offset: int = 0, kind: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _text(name) + dimensions + struct.pack("<IQ", kind, offset)


_HOSTILE: dict[str, tuple[bytes, str]] = {
    "array of arrays": (
        _header(0, [_text("a") + struct.pack("<IIQ", 9, 9, 2**40)], []),
        "arrays of type 9",
    ),
    "array of 2^63 numbers": (
        _header(0, [_text("a") + struct.pack("<IIQ", 9, 10, 2**63)], []),
        "bytes are missing",
    ),
    "array of 2^63 texts": (
        _header(0, [_text("a") + struct.pack("<IIQ", 9, 8, 2**63)], []),
        "bytes are missing",
    ),
    "name of 2^64 - 1 bytes": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**64 - 1),
        "bytes are missing",
    ),
    "dimensions whose product overflows": (
        _header(1, [], [_tensor("t", (2**33, 2**33))]) + bytes(64),
        "cut short",
    ),
    "too many dimensions": (_header(1, [], [_tensor("t", (1,) * 9)]), "9 dimensions"),
    "no bytes at all": (_header(1, [], [_tensor("t", (4, 0))]) + bytes(64), "does not fill"),
    "offset past the end": (_header(1, [], [_tensor("t", (4,), 2**63)]) + bytes(64), "cut short"),
    "offset between": (_header(1, [], [_tensor("t", (4,), 8)]) + bytes(96), "not aligned"),
    "unknown storage": (
        _header(1, [], [_tensor("t", (4,), 0, 255)]) + bytes(64),
        "unknown storage",
    ),
    "tensors that share their bytes": (
        _header(100, [], [_tensor(f"t{each}", (1000,)) for each in range(100)]) + bytes(4200),
        "more bytes than the file has",
    ),
    "a key twice": (
        _header(0, [_text("a") + struct.pack("<IB", 7, 1)] * 2, []),
        "'a' occurs twice",
    ),
    "alignment of no power of two": (
        _header(0, [_text("general.alignment") + struct.pack("<II", 4, 33)], []),
        "no power of two",
    ),
    "alignment that is true": (
        _header(0, [_text("general.alignment") + struct.pack("<IB", 7, 1)], []),
        "no power of two",
    ),
    "alignment past the end": (
        _header(
            1, [_text("general.alignment") + struct.pack("<IQ", 10, 2**63)], [_tensor("t", (4,))]
        )
        + bytes(64),
        "cut short",
    ),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_hostile_header_is_refused_and_costs_nothing(tmp_path: Path, name: str) -> None:
    content, message = _HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)

    tracemalloc.start()
    with pytest.raises(ModelError, match=message):
        open_gguf(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 4_000_000


@pytest.mark.parametrize("length", [0, 7, 2**63, 2**64 - 1, 100_000_001])
def test_a_safetensors_header_longer_than_its_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(struct.pack("<Q", length)[: 8 if length else 3] + b"{}")

    with pytest.raises(ModelError, match="no whole safetensors file"):
        read_header_bytes(path)
