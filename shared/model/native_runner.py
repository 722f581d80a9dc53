"""The `ModelRunner` of the native kernels: one fused call a step over mapped weights."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu import structs
from slipstream.kernels.cpu.loader import NativeLibrary
from slipstream.kernels.cpu.matrix import Matrix
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packed_file import Array, PackedArrays
from slipstream.shared.model.packing import HADAMARD, PACKING_VERSION, takes_rotation
from slipstream.shared.model.rotary_memory import RotaryMemory
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.step_counters import StepCounters


class NativeRunner:
    """
    Runs packed batches over the arena. Results don't depend on batch, chunking or threads.

    Nor on fusing: without it a step runs op by op through memory, to measure what fusing gains.
    """

    # The ISA level has no place in it: all levels give the same bits (and a test says so).
    numerics = f"native-{PACKING_VERSION}"

    def __init__(
        self,
        library: NativeLibrary,
        packed: PackedArrays,
        config: ModelConfig,
        kv: memoryview,
        layout: KvLayout,
        num_threads: int,
        *,
        is_fused: bool = True,
        sharing: "NativeRunner | None" = None,
    ) -> None:
        """With `sharing` another runner's threads compute, which has to be closed after this."""
        assert layout.kind == "model", f"no model can use the layout {layout.fingerprint}"
        self.vocab_size = config.vocab_size
        self.num_forwards = 0
        # An array of C: each step ends in cold caches, where numpy's ways are long.
        self._phase_ns = (ctypes.c_int64 * len(structs.PHASES))()
        self.counters = StepCounters(self._phase_ns)
        self.num_threads = num_threads
        self._is_fused = is_fused
        self._library = library
        self._block_bytes = layout.block_bytes
        self._kv_bytes_per_token = layout.bytes_per_token
        self._kv = np.frombuffer(kv, np.uint8)
        self._kept: list[Array | Matrix] = []  # what the structs point to
        self._rotary = RotaryMemory(config)
        self._layers = (structs.Layer * config.num_layers)()
        self._model = self._describe(packed, config, layout)
        self._head_bytes = packed["head.weights"].nbytes
        self._layer_bytes = self._matrix_bytes() - self._head_bytes
        self._is_sharing = sharing is not None
        self._engine: int = (
            library.new_engine(num_threads) if sharing is None else sharing.engine_handle
        )

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """Run one packed pass; see `ModelRunner`."""
        self.num_forwards += 1
        self._rotary.reach(max(rows.context_len for rows in batch))
        token_ids = np.array(
            [t for rows in batch for t in rows.token_ids[rows.num_computed_tokens :]], np.int32
        )
        block_tables = np.array([b for rows in batch for b in rows.block_table], np.int32)
        sequences = (structs.Sequence * len(batch))()
        logit_rows: list[int] = []
        first_row = first_block = num_positions = 0
        for place, rows in zip(sequences, batch, strict=True):
            place.first_row, place.num_rows = first_row, rows.num_rows
            place.num_computed, place.first_block = rows.num_computed_tokens, first_block
            first_row += rows.num_rows
            num_positions += rows.num_computed_tokens + 2 * rows.num_rows  # read, and written
            first_block += len(rows.block_table)
            logit_rows += range(first_row - rows.num_logit_rows, first_row)
        wanted = np.array(logit_rows, np.int32)
        logits = np.empty((len(wanted), self.vocab_size), np.float32)
        step = structs.Step(
            num_rows=len(token_ids),
            num_sequences=len(batch),
            num_logit_rows=len(wanted),
            num_threads=self.num_threads,
            token_ids=token_ids.ctypes.data,
            sequences=ctypes.addressof(sequences),
            block_tables=block_tables.ctypes.data,
            logit_rows=wanted.ctypes.data,
            logits=logits.ctypes.data,
            kv=self._kv.ctypes.data,
            block_bytes=self._block_bytes,
            is_unfused=not self._is_fused,
            phase_ns=ctypes.addressof(self._phase_ns),
        )
        self._library.step(self._engine, self._model, step)
        self.counters.weight_bytes += self._layer_bytes + (self._head_bytes if logit_rows else 0)
        self.counters.kv_bytes += num_positions * self._kv_bytes_per_token
        return logits

    def _matrix_bytes(self) -> int:
        return sum(each.weights.nbytes for each in self._kept if isinstance(each, Matrix))

    @property
    def engine_handle(self) -> int:
        """The compute threads and their buffers, by what the kernels call them."""
        return self._engine

    def share_cores(self, ledger: Path) -> bool:
        """
        From now on compute on cores that no other process does, of those that name the same file.

        Returns False where the system has no means for it.
        """
        return self._library.share_cores(self._engine, ledger)

    def rest(self) -> None:
        """Free the buffers of past steps: after a chunk of 512 rows they are 9 MB."""
        if not self._is_sharing:
            self._library.rest(self._engine)

    def close(self) -> None:
        """End the compute threads."""
        if self._engine:
            if not self._is_sharing:
                self._library.free_engine(self._engine)
            self._engine = 0
            self._kv = np.empty(0, np.uint8)

    def _describe(
        self, packed: PackedArrays, config: ModelConfig, layout: KvLayout
    ) -> structs.Model:
        for layer_idx, layer in enumerate(self._layers):
            self._fill_layer(layer, packed, f"layers.{layer_idx}")
        return structs.Model(
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate=config.intermediate_size,
            vocab=config.vocab_size,
            kv_format=structs.FORMATS[layout.dtype],
            max_context=config.max_context_length,
            epsilon=config.rms_norm_eps,
            cosines=self._pointer(self._rotary.cosines),
            sines=self._pointer(self._rotary.sines),
            final_norm=self._pointer(packed["final_norm"]),
            layers=ctypes.addressof(self._layers),
            head=self._linear(packed, "head"),
            embedding=self._pointer(packed.get("embedding")),
        )

    def _fill_layer(self, layer: structs.Layer, packed: PackedArrays, name: str) -> None:
        layer.attention_norm = self._pointer(packed[f"{name}.attention_norm"])
        layer.mlp_norm = self._pointer(packed[f"{name}.mlp_norm"])
        layer.key_mean = self._pointer(packed.get(f"{name}.key_mean"))
        layer.qkv = self._linear(packed, f"{name}.qkv")
        layer.output = self._linear(packed, f"{name}.output")
        layer.gate_up = self._linear(packed, f"{name}.gate_up")
        layer.down = self._linear(packed, f"{name}.down")

    def _linear(self, packed: PackedArrays, name: str) -> structs.Linear:
        matrix = Matrix(
            packed[f"{name}.weights"],
            scales=packed.get(f"{name}.scales"),
            sums=packed.get(f"{name}.sums"),
            outlier_sums=packed.get(f"{name}.outlier_sums"),
            columns=packed.get(f"{name}.columns"),
            outliers=packed.get(f"{name}.outliers"),
        )
        if matrix.is_of_integers and takes_rotation(name, matrix.num_inputs):
            matrix = replace(matrix, hadamard=0 if matrix.num_outliers else HADAMARD)
        self._kept.append(matrix)
        return matrix.as_struct()

    def _pointer(self, values: Array | None) -> int | None:
        if values is None:
            return None
        self._kept.append(values)
        return values.ctypes.data
