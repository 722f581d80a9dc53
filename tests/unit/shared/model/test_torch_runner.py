"""The paged runner against transformers on a tiny random model, whatever the packing."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slipstream.shared.errors import ModelError
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import ModelConfig, load_config
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.torch_runner import TorchRunner

_NUM_BLOCKS = 24
_VOCAB_SIZE = 97
_PROMPT = [int(t) for t in np.random.default_rng(3).integers(0, _VOCAB_SIZE, 75)]
# The same float32 operations in another order.
_TOLERANCE = 1e-4


class _Model(NamedTuple):
    directory: Path
    config: ModelConfig
    reference: LlamaForCausalLM


def _save(directory: Path, *, tie: bool, dtype: torch.dtype, shard_size: str) -> _Model:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tie,
        initializer_range=0.3,  # far from uniform logits, so that a wrong token shows
    )
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1000.0}
    LlamaForCausalLM(config).to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    # Read again, because the conversion would have rounded its rotary frequencies too.
    reference = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return _Model(directory, load_config(directory), reference)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _Model:
    directory = tmp_path_factory.mktemp("model")
    return _save(directory, tie=True, dtype=torch.float32, shard_size="1GB")


def _runner(model: _Model) -> TorchRunner:
    """Make a runner over an arena full of NaN, as if of blocks used before."""
    config = model.config
    layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim)
    arena = np.full(_NUM_BLOCKS * layout.block_bytes // 4, np.nan, np.float32)
    return TorchRunner(
        model.directory, config, memoryview(arena).cast("B"), layout, _NUM_BLOCKS, num_threads=2
    )


def _reference_logits(model: _Model, token_ids: list[int]) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        logits: npt.NDArray[np.float32] = model.reference(torch.tensor([token_ids])).logits[0]
    return np.asarray(logits)


def _rows(
    token_ids: list[int], num_rows: int, block_table: list[int], num_logit_rows: int = 1
) -> SequenceRows:
    return SequenceRows(token_ids, len(token_ids) - num_rows, num_rows, block_table, num_logit_rows)


def _assert_close(expected: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> None:
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * scale)


def test_one_pass_over_a_prompt_gives_the_logits_of_transformers(model: _Model) -> None:
    found = _runner(model).forward([_rows(_PROMPT, 75, [7, 3, 5], num_logit_rows=75)])

    _assert_close(_reference_logits(model, _PROMPT), found)


@pytest.mark.parametrize("chunk_size", [1, 7, 32, 74])
def test_a_prompt_in_chunks_gives_the_logits_of_one_pass(model: _Model, chunk_size: int) -> None:
    runner = _runner(model)
    found = []
    for start in range(0, len(_PROMPT), chunk_size):
        chunk = _PROMPT[start : start + chunk_size]
        rows = _rows(_PROMPT[: start + len(chunk)], len(chunk), [7, 3, 5], len(chunk))
        found.append(runner.forward([rows]))

    _assert_close(_reference_logits(model, _PROMPT), np.concatenate(found))
    assert -(-75 // chunk_size) == runner.num_forwards


def test_greedy_decoding_says_what_transformers_says(model: _Model) -> None:
    runner = _runner(model)
    token_ids, num_rows = list(_PROMPT), len(_PROMPT)
    for _ in range(40):
        logits = runner.forward([_rows(token_ids, num_rows, [7, 3, 5, 0])])
        token_ids.append(int(logits[0].argmax()))
        num_rows = 1
    expected = model.reference.generate(
        torch.tensor([_PROMPT]), max_new_tokens=40, do_sample=False, eos_token_id=None
    )

    assert expected[0].tolist() == token_ids
    assert len(set(token_ids[75:])) > 5, "the model says too little to tell right from wrong"


def test_sequences_packed_into_one_step_do_not_see_each_other(model: _Model) -> None:
    """A decode row, verification rows, a last and an inner prompt chunk share a forward."""
    runner = _runner(model)
    reversed_prompt = _PROMPT[::-1]
    runner.forward(
        [
            _rows(_PROMPT[:32], 32, [4, 9], num_logit_rows=0),
            _rows(reversed_prompt[:60], 60, [20, 2, 11]),
            _rows(_PROMPT[10:30], 20, [1, 23], num_logit_rows=0),
        ]
    )

    found = runner.forward(
        [
            _rows(_PROMPT[:33], 1, [4, 9]),
            _rows(reversed_prompt[:65], 5, [20, 2, 11], num_logit_rows=5),
            _rows(_PROMPT[10:50], 20, [1, 23]),
            _rows(_PROMPT[5:45], 40, [0, 12], num_logit_rows=0),
        ]
    )

    expected = [
        _reference_logits(model, _PROMPT[:33])[-1:],
        _reference_logits(model, reversed_prompt[:65])[-5:],
        _reference_logits(model, _PROMPT[10:50])[-1:],
    ]
    _assert_close(np.concatenate(expected), found)
    assert 2 == runner.num_forwards


def test_a_step_without_logit_rows_returns_an_empty_array(model: _Model) -> None:
    found = _runner(model).forward([_rows(_PROMPT[:5], 5, [0], num_logit_rows=0)])

    assert (0, _VOCAB_SIZE) == found.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_half_floats_and_an_untied_head_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    model = _save(tmp_path, tie=False, dtype=dtype, shard_size="50KB")
    assert (tmp_path / "model.safetensors.index.json").exists()

    found = _runner(model).forward([_rows(_PROMPT, 75, [7, 3, 5], num_logit_rows=75)])

    _assert_close(_reference_logits(model, _PROMPT), found)


def test_float32_weights_stay_in_the_mapped_file(model: _Model) -> None:
    """Workers of a host share the page cache, which a copy would not."""
    runner = _runner(model)
    address = runner._embedding.data_ptr()
    mappings = Path("/proc/self/maps").read_text().splitlines()

    def holds(mapping: str) -> bool:
        start, end = (int(part, 16) for part in mapping.split(maxsplit=1)[0].split("-"))
        return start <= address < end

    assert ["model.safetensors"] == [Path(m.split()[-1]).name for m in mappings if holds(m)]


def test_a_directory_without_weights_is_named(model: _Model, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        _runner(model._replace(directory=tmp_path))


def test_a_missing_tensor_is_named(model: _Model) -> None:
    config = load_config(model.directory)
    more_layers = ModelConfig(
        **{name: getattr(config, name) for name in config.__struct_fields__} | {"num_layers": 4}
    )

    with pytest.raises(ModelError, match=r"model\.layers\.3\.input_layernorm\.weight"):
        _runner(model._replace(config=more_layers))
