"""The packed file of a model and format: made once, kept in the cache, shared by all processes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.matrix import NUM_OUTLIERS, QUAD
from slipstream.shared.errors import ModelError
from slipstream.shared.model.cache_directory import ensure, find_damage
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.folding import folded
from slipstream.shared.model.gptq import quantize_rows
from slipstream.shared.model.gptq_groups import quantize_groups
from slipstream.shared.model.int4_grid import Grid, find_grid, to_integers
from slipstream.shared.model.packed_file import Array, PackedFile, write_packed
from slipstream.shared.model.packing import (
    HADAMARD,
    PACKING_VERSION,
    interleave,
    named,
    pack_bf16,
    pack_float32,
    pack_int4,
    pack_int8,
    rotate_columns,
    round_to_bf16,
    takes_rotation,
)

FILE_NAME = "weights.safetensors"
Report = Callable[[str], None]
Weights = npt.NDArray[np.float32]


def open_packed(
    model_dir: Path,
    config: ModelConfig,
    fingerprint: str,
    weight_format: str,
    cache_dir: Path,
    *,
    report: Report,
) -> PackedFile:
    """Map the packed weights, making the file first where it is missing. Raises ModelError."""
    name = f"{config.name} ({weight_format})"
    directory = _directory(fingerprint, weight_format, cache_dir)

    def build(partial: Path) -> None:
        report(f"packing {name}; this happens once")
        tensors = dict(_pack(model_dir, config, weight_format))
        metadata = {"format": weight_format, "version": str(PACKING_VERSION)}
        write_packed(partial / FILE_NAME, tensors, metadata)

    ensure(directory, name, str(model_dir), build, report=report, verify=False)
    return PackedFile(directory / FILE_NAME)


def is_packed(fingerprint: str, weight_format: str, cache_dir: Path) -> bool:
    """Tell whether the file is there, whole."""
    return find_damage(_directory(fingerprint, weight_format, cache_dir), verify=False) is None


def _directory(fingerprint: str, weight_format: str, cache_dir: Path) -> Path:
    return cache_dir / "packed" / f"{fingerprint}-{weight_format}-v{PACKING_VERSION}"


def _pack(model_dir: Path, config: ModelConfig, weight_format: str) -> Iterator[tuple[str, Array]]:
    # torch is needed once a model, not by the workers that map the result.
    from slipstream.shared.model.tensors import load_tensors  # noqa: PLC0415 - needed only where weights are packed

    loaded = load_tensors(model_dir)
    tensors = {name: tensor.numpy() for name, tensor in loaded.items()}
    if weight_format in ("int8", "int4"):
        yield from _pack_rounded(model_dir, config, loaded, tensors, weight_format)
        return
    pack = pack_bf16 if weight_format == "bf16" else pack_float32
    for name, weights in matrices(tensors, config):
        yield from named(name, pack(weights)).items()
    yield from vectors(tensors, config)
    if not config.tie_word_embeddings:
        embedding = tensors["model.embed_tokens.weight"]
        yield "embedding", round_to_bf16(embedding) if weight_format == "bf16" else embedding


def _pack_rounded(
    model_dir: Path,
    config: ModelConfig,
    loaded: dict[str, Any],  # Any: torch's tensors, whose type would import torch here
    tensors: dict[str, Weights],
    weight_format: str,
) -> Iterator[tuple[str, Array]]:
    """
    Calibrate, change the model into one that rounds better, and round every matrix.

    A checkpoint of 4 bits stays as it is in int4: what it holds is carried over.
    """
    from slipstream.shared.model import calibration  # noqa: PLC0415 - needed only where weights are packed
    from slipstream.shared.model.tokenizer import Tokenizer  # noqa: PLC0415 - needed only where weights are packed

    _check_finite(tensors)
    grids = _grids(tensors, config) if weight_format == "int4" else {}
    texts = calibration.calibration_texts()
    found = calibration.calibrate(loaded, config, Tokenizer(model_dir), texts, grids)
    if not grids:
        tensors, found = folded(tensors, found, config)
    for name, weights in matrices(tensors, config):
        if name in grids:
            parts = carried_matrix(name, grids[name], found.strengths[name].astype(np.float64))
        else:
            moments = found.moments[name].astype(np.float64)
            is_int4 = weight_format == "int4" and not grids and takes_4_bits(name)
            parts = (int4_matrix if is_int4 else _int8_matrix)(name, weights, moments)
        yield from named(name, parts).items()
    yield from vectors(tensors, config)
    for layer_idx, mean in enumerate(found.key_means):
        rotated_mean = rotate_columns(mean.astype(np.float64), config.head_dim)
        yield f"layers.{layer_idx}.key_mean", rotated_mean.astype(np.float32)
    if not config.tie_word_embeddings:
        yield "embedding", tensors["model.embed_tokens.weight"]


def _check_finite(tensors: dict[str, Weights]) -> None:
    """Refuse what can't be rounded: its row would be garbage, or lost. Raises ModelError."""
    for name, weights in tensors.items():
        if not np.isfinite(weights).all():
            raise ModelError(f"{name} holds NaN or infinity; only --format float32 or bf16 take it")


def _grids(tensors: dict[str, Weights], config: ModelConfig) -> dict[str, Grid]:
    """Return the grids of a checkpoint of 4 bits; none where most matrices have none."""
    found, num_weights, num_found = {}, 0, 0
    for name, weights in matrices(tensors, config):
        if name == "head":
            continue
        num_weights += weights.size
        grid = find_grid(weights)
        if grid is not None:
            found[name] = grid
            num_found += weights.size
    return found if 2 * num_found > num_weights else {}


def carried_matrix(name: str, grid: Grid, strengths: npt.NDArray[np.float64]) -> dict[str, Array]:
    """Return a matrix of 4 bits as the checkpoint has it: its columns stay where they are."""
    num_quads = len(strengths) // QUAD
    quads = np.arange(num_quads)
    if takes_outliers(name, len(strengths)):
        # By the strongest of four: a few columns carry most of the range.
        by_strength = np.argsort(-strengths.reshape(num_quads, QUAD).max(axis=1), kind="stable")
        quads = np.sort(by_strength[: NUM_OUTLIERS // QUAD])
    return pack_int4(to_integers(grid), quads.astype(np.int32))


def int4_matrix(
    name: str, weights: Weights, moments: npt.NDArray[np.float64] | None
) -> dict[str, Array]:
    """Return a matrix rounded to 4 bits: rotated, or all columns in the order of their strength."""
    wide = weights.astype(np.float64)
    columns, outliers = None, np.empty(0, np.int32)
    if takes_rotation(name, wide.shape[1]):
        wide = rotated(wide)
        moments = None if moments is None else rotated(rotated(moments).T).T
    elif moments is not None:
        columns = np.argsort(-np.diag(moments), kind="stable").astype(np.int32)
        wide, moments = wide[:, columns], moments[np.ix_(columns, columns)]
    if takes_outliers(name, wide.shape[1]):
        outliers = np.arange(NUM_OUTLIERS // QUAD, dtype=np.int32)
    return pack_int4(quantize_groups(wide, moments), outliers, columns)


def takes_4_bits(name: str) -> bool:
    """
    Tell whether we round a matrix to 4 bits.

    Not the head, nor those of attention: a quarter of the weights, a third of all that is lost.
    """
    return name.endswith(("gate_up", "down"))


def _int8_matrix(name: str, weights: Weights, moments: npt.NDArray[np.float64]) -> dict[str, Array]:
    has_outliers = takes_outliers(name, weights.shape[1])
    columns = strongest_first(np.diag(moments)) if has_outliers else None
    return quantized_matrix(name, weights, moments, columns)


def takes_outliers(name: str, num_inputs: int) -> bool:
    """Tell whether the strongest inputs of a matrix keep 16 bits."""
    return not name.endswith("down") and num_inputs > NUM_OUTLIERS


def quantized_matrix(
    name: str,
    weights: Weights,
    moments: npt.NDArray[np.float64] | None,
    columns: npt.NDArray[np.int32] | None,
) -> dict[str, Array]:
    """Return a matrix in int8: rotated or reordered as its kernel wants it, rounded, packed."""
    wide = weights.astype(np.float64)
    if takes_rotation(name, wide.shape[1]):
        wide = rotated(wide)
        moments = None if moments is None else rotated(rotated(moments).T).T
    elif columns is not None:
        wide = wide[:, columns]
        moments = None if moments is None else moments[np.ix_(columns, columns)]
    codes, scales = quantize_rows(wide, moments)
    return pack_int8(codes, scales, columns)


def rotated(matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rotate the columns in blocks, as the kernel rotates the inputs."""
    return rotate_columns(matrix, HADAMARD)


def strongest_first(strengths: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """Return an order of the columns with the strongest first."""
    strongest = np.sort(np.argsort(-strengths, kind="stable")[:NUM_OUTLIERS])
    others = np.setdiff1d(np.arange(len(strengths)), strongest)
    return np.concatenate([strongest, others]).astype(np.int32)


def matrices(tensors: dict[str, Weights], config: ModelConfig) -> Iterator[tuple[str, Weights]]:
    """Yield the matrices as the kernels take them, one at a time."""
    for layer_idx in range(config.num_layers):
        prefix, name = f"model.layers.{layer_idx}.", f"layers.{layer_idx}."
        qkv = [tensors[f"{prefix}self_attn.{part}_proj.weight"] for part in "qkv"]
        yield name + "qkv", np.concatenate(qkv)
        yield name + "output", tensors[prefix + "self_attn.o_proj.weight"]
        gate, up = (tensors[f"{prefix}mlp.{part}_proj.weight"] for part in ("gate", "up"))
        yield name + "gate_up", interleave(gate, up)
        yield name + "down", tensors[prefix + "mlp.down_proj.weight"]
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    yield "head", tensors[head]


def vectors(tensors: dict[str, Weights], config: ModelConfig) -> Iterator[tuple[str, Array]]:
    """Yield the weights of the norms."""
    for layer_idx in range(config.num_layers):
        prefix, name = f"model.layers.{layer_idx}.", f"layers.{layer_idx}."
        yield name + "attention_norm", tensors[prefix + "input_layernorm.weight"]
        yield name + "mlp_norm", tensors[prefix + "post_attention_layernorm.weight"]
    yield "final_norm", tensors["model.norm.weight"]
