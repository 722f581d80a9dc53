"""Readers of files that come from elsewhere: GGUF, safetensors, packed weights, trained drafts."""

import atexit
import tempfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from slipstream.shared.drafting.trained_file import DraftOrigin, TrainedDraft
from slipstream.shared.errors import ModelError
from slipstream.shared.model.gguf_file import open_gguf
from slipstream.shared.model.packed_file import PackedFile, write_packed
from slipstream.shared.model.safetensors_header import read_header_bytes

from .target import Target

_MAX_VALUES = 1 << 20  # a reader is asked for no more than the file can hold
_WORDS = (
    b"__metadata__",
    b"data_offsets",
    b'"shape":[',
    b"[1000000000,[0]]",
    b"null",
    b"-1",
    b"1e9",
)


def targets() -> list[Target]:
    """Return them all."""
    directory = tempfile.TemporaryDirectory(prefix="fuzz-")
    atexit.register(directory.cleanup)
    folder = Path(directory.name)
    packed, draft, model = folder / "packed", folder / "draft", folder / "model.gguf"
    _write_packed(packed)
    _write_draft(draft)
    _write_gguf(model)

    def target(name: str, sample: Path, read: Callable[[Path], object]) -> Target:
        return Target(
            f"file.{name}",
            _through(folder / f"{name}.fuzzed", read),
            (ModelError,),
            [sample.read_bytes()],
            share=0.15,
            words=_WORDS,
            cpu_limit_s=2.0,
        )

    return [
        target("gguf", model, _read_gguf),
        target("safetensors", packed, read_header_bytes),
        target("packed", packed, _read_packed),
        target("draft", draft, TrainedDraft.read),
    ]


def _through(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def check(payload: bytes) -> object:
        # Anew each time: what is still mapped must not be cut.
        path.unlink(missing_ok=True)
        path.write_bytes(payload)
        return read(path)

    return check


def _read_gguf(path: Path) -> object:
    file = open_gguf(path)
    for tensor in file.tensors.values():
        values = file.read_float32(tensor)
        assert values.shape == tensor.shape
    return file.metadata


def _read_packed(path: Path) -> object:
    file = PackedFile(path)
    for name in file.names:
        values = file[name]
        assert values.size <= _MAX_VALUES
        values.sum(dtype=np.float64)
    return file.metadata


def _write_packed(path: Path) -> None:
    arrays = {
        "codes": np.arange(-5, 5, dtype=np.int8),
        "halves": np.array([0x3F80, 0xC000, 1], np.uint16),
        "columns": np.arange(12, dtype=np.int32).reshape(3, 4),
        "scales": np.linspace(0, 1, 7, dtype=np.float32),
    }
    write_packed(path, arrays, {"format": "int8"})


def _write_draft(path: Path) -> None:
    origin = DraftOrigin(
        model="m", fingerprint="f", tokenizer_fingerprint="t", num_layers=2, num_blocks=1
    )
    tensors = {
        "blocks.0.q_proj": np.ones((4, 4), np.float32),
        "final_norm": np.ones(4, np.float32),
    }
    TrainedDraft(origin, tensors, np.arange(4, dtype=np.int32)).write(path)


def _write_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_token_list(["a", "b", "<|im_end|>"])
    writer.add_token_types([1, 1, 3])
    writer.add_rope_freq_base(10_000.0)
    writer.add_custom_alignment(32)
    kind = gguf.GGMLQuantizationType.Q8_0
    data = np.ones((2, 64), np.float32)
    writer.add_tensor("blk.0.attn_q.weight", gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
