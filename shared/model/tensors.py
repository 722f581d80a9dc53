"""The tensors of a model directory, memory-mapped: one file, or shards named by an index."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from slipstream.shared.errors import ModelError

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


def load_tensors(model_dir: Path) -> dict[str, Tensor]:
    """
    Return every tensor in float32, by its name in the checkpoint.

    Float32 tensors stay in the mapped file, where all processes of a host share them; those of
    other float types are converted and private. Raises ModelError.
    """
    tensors: dict[str, Tensor] = {}
    for path in _files(model_dir):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - the handle is no mapping
                    tensors[name] = file.get_tensor(name).to(torch.float32)
        except Exception as error:  # the library raises types of its own besides OSError
            raise ModelError(f"can't read {path}: {error}") from error
    return tensors


def _files(model_dir: Path) -> list[Path]:
    index = model_dir / _INDEX_FILE
    if not index.is_file():
        return [model_dir / _SINGLE_FILE]
    names: dict[str, str] = json.loads(index.read_text())["weight_map"]
    return [model_dir / name for name in sorted(set(names.values()))]
