"""The reference runner: a Llama-style decoder in plain torch over the paged KV cache."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.kernels import ops
from slipstream.shared.errors import ModelError
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.tensors import load_tensors


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights, each [out, in] as in the checkpoint."""

    input_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    post_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers share: where the rows are and what they may see."""

    cos: Tensor
    sin: Tensor
    slot_mapping: Tensor
    block_tables: list[Tensor]
    num_query_rows: list[int]
    context_lens: list[int]


class TorchRunner:
    """
    The `ModelRunner` of the reference path.

    Float32 weights stay where the file is mapped, so that workers of a host share them; the KV
    cache is the arena itself.
    """

    numerics = "reference"
    counters = None  # torch doesn't tell

    def __init__(
        self,
        model_dir: Path,
        config: ModelConfig,
        kv: memoryview,
        layout: KvLayout,
        num_blocks: int,
        num_threads: int,
    ) -> None:
        torch.set_num_threads(num_threads)
        self.vocab_size = config.vocab_size
        self.num_forwards = 0
        self._config = config
        self._kv_cache = _wrap(kv, layout, num_blocks)
        self._load(model_dir)
        self._cos, self._sin = _rotary_table(config)

    @torch.inference_mode()
    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """Run one packed pass; see `ModelRunner`."""
        self.num_forwards += 1
        step = self._prepare(batch)
        new_tokens = [t for rows in batch for t in rows.token_ids[rows.num_computed_tokens :]]
        hidden = functional.embedding(torch.tensor(new_tokens), self._embedding)
        for layer_idx, layer in enumerate(self._layers):
            hidden = self._attention(hidden, layer, layer_idx, step)
            hidden = self._mlp(hidden, layer)
        logits: npt.NDArray[np.float32] = self._logits(hidden, batch).numpy()
        return logits

    def rest(self) -> None:
        """Nothing is kept between passes."""

    def close(self) -> None:
        """Do nothing: torch's threads and the mapped arena end with the process."""

    def _attention(self, hidden: Tensor, layer: _Layer, layer_idx: int, step: _Step) -> Tensor:
        head_dim = self._config.head_dim
        x = ops.rms_norm(hidden, layer.input_norm, self._config.rms_norm_eps)
        query, key, value = (
            functional.linear(x, weight).view(len(x), -1, head_dim)
            for weight in (layer.query, layer.key, layer.value)
        )
        query, key = ops.rotary(query, step.cos, step.sin), ops.rotary(key, step.cos, step.sin)
        # Written first, so that the rows of a chunk see one another through the cache as well.
        ops.write_kv(key, value, self._kv_cache, layer_idx, step.slot_mapping)
        attended = ops.paged_attention(
            query,
            self._kv_cache,
            layer_idx,
            step.block_tables,
            step.num_query_rows,
            step.context_lens,
        )
        return torch.addmm(hidden, attended.flatten(1), layer.output.t())

    def _mlp(self, hidden: Tensor, layer: _Layer) -> Tensor:
        x = ops.rms_norm(hidden, layer.post_norm, self._config.rms_norm_eps)
        gate, up = functional.linear(x, layer.gate), functional.linear(x, layer.up)
        return torch.addmm(hidden, ops.silu_and_multiply(gate, up), layer.down.t())

    def _logits(self, hidden: Tensor, batch: Sequence[SequenceRows]) -> Tensor:
        wanted = torch.tensor(list(_logit_rows(batch)), dtype=torch.int64)
        x = ops.rms_norm(hidden[wanted], self._norm, self._config.rms_norm_eps)
        return functional.linear(x, self._head)

    def _prepare(self, batch: Sequence[SequenceRows]) -> _Step:
        positions = torch.cat(
            [torch.arange(rows.num_computed_tokens, rows.context_len) for rows in batch]
        )
        block_tables = [torch.tensor(rows.block_table, dtype=torch.int64) for rows in batch]
        return _Step(
            cos=self._cos[positions],
            sin=self._sin[positions],
            slot_mapping=torch.cat(
                [
                    _slots(rows, block_table, self._kv_cache.shape[4])
                    for rows, block_table in zip(batch, block_tables, strict=True)
                ]
            ),
            block_tables=block_tables,
            num_query_rows=[rows.num_rows for rows in batch],
            context_lens=[rows.context_len for rows in batch],
        )

    def _load(self, model_dir: Path) -> None:
        tensors = load_tensors(model_dir)
        try:
            self._embedding = tensors["model.embed_tokens.weight"]
            self._layers = [_layer(tensors, i) for i in range(self._config.num_layers)]
            self._norm = tensors["model.norm.weight"]
            tied = self._config.tie_word_embeddings
            self._head = self._embedding if tied else tensors["lm_head.weight"]
        except KeyError as error:
            raise ModelError(f"{model_dir} has no tensor {error.args[0]!r}") from error
        expected = (self._config.vocab_size, self._config.hidden_size)
        if self._embedding.shape != expected:
            raise ModelError(
                f"{model_dir}: the embedding is {tuple(self._embedding.shape)},"
                f" config.json says {expected}"
            )


def _layer(tensors: dict[str, Tensor], layer_idx: int) -> _Layer:
    prefix = f"model.layers.{layer_idx}."
    return _Layer(
        input_norm=tensors[prefix + "input_layernorm.weight"],
        query=tensors[prefix + "self_attn.q_proj.weight"],
        key=tensors[prefix + "self_attn.k_proj.weight"],
        value=tensors[prefix + "self_attn.v_proj.weight"],
        output=tensors[prefix + "self_attn.o_proj.weight"],
        post_norm=tensors[prefix + "post_attention_layernorm.weight"],
        gate=tensors[prefix + "mlp.gate_proj.weight"],
        up=tensors[prefix + "mlp.up_proj.weight"],
        down=tensors[prefix + "mlp.down_proj.weight"],
    )


def _wrap(kv: memoryview, layout: KvLayout, num_blocks: int) -> Tensor:
    """View the arena's block area as a tensor, without a copy."""
    assert layout.kind == "model", f"no model can use the layout {layout.fingerprint}"
    num_floats = num_blocks * layout.block_bytes // torch.float32.itemsize
    return torch.frombuffer(kv, dtype=torch.float32, count=num_floats).view(
        num_blocks, layout.num_layers, 2, layout.num_kv_heads, layout.block_size, layout.head_dim
    )


def _rotary_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return cos and sin [max_context_length, head_dim / 2] of `ops.rotary`'s angles."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    angles = torch.outer(torch.arange(config.max_context_length).float(), frequencies)
    return angles.cos(), angles.sin()


def _slots(rows: SequenceRows, block_table: Tensor, block_size: int) -> Tensor:
    """Return the slots that a sequence's rows are written to."""
    assert len(block_table) * block_size >= rows.context_len, (
        f"{len(block_table)} blocks don't cover {rows.context_len} tokens"
    )
    positions = torch.arange(rows.num_computed_tokens, rows.context_len)
    return block_table[positions // block_size] * block_size + positions % block_size


def _logit_rows(batch: Sequence[SequenceRows]) -> Iterator[int]:
    """Yield the packed indices of the rows that want logits."""
    end = 0
    for rows in batch:
        end += rows.num_rows
        yield from range(end - rows.num_logit_rows, end)
