"""What a model is, as read from the config.json of its directory, and its fingerprint."""

import contextlib
import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slipstream.shared.errors import ModelError
from slipstream.shared.model.safetensors_header import read_header_bytes

MANIFEST_FILE = "slipstream.json"
_T = TypeVar("_T")
_MODEL_TYPES = ("llama", "mistral")
# Enough of each weight file to tell fine-tunes of one shape apart, and read in milliseconds.
_NUM_SAMPLES = 16
_NUM_SAMPLE_BYTES = 4096


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder of the llama family, with the defaults its makers give for sampling."""

    name: str
    architecture: str = "llama"
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_context_length: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = off


class _Rope(msgspec.Struct, frozen=True):
    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None  # the key of older files
    partial_rotary_factor: float | None = None


class _ConfigFile(msgspec.Struct, frozen=True):
    """The keys of config.json that matter here; null and absent mean the same."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    rms_norm_eps: float | None = None
    rope_theta: float | None = None
    rope_parameters: _Rope | None = None
    rope_scaling: _Rope | None = None
    partial_rotary_factor: float | None = None
    hidden_act: str | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    layer_types: list[str] | None = None
    tie_word_embeddings: bool | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    quantization_config: dict[str, Any] | None = None  # only its presence matters


class _GenerationFile(msgspec.Struct, frozen=True):
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


class _Manifest(msgspec.Struct, frozen=True):
    name: str | None = None


def with_full_heads(config: ModelConfig) -> ModelConfig:
    """Return the model with a KV head for each query head (shared/model/full_heads.py)."""
    return msgspec.structs.replace(config, num_kv_heads=config.num_heads)


def load_config(model_dir: Path) -> ModelConfig:
    """Read config.json and generation_config.json. Raises ModelError for what can't be served."""
    file = _read(model_dir / "config.json", _ConfigFile)
    problem = _why_unserved(file) or _why_inconsistent(file)
    if problem:
        raise ModelError(f"{model_dir / 'config.json'}: {problem}")
    generation_path = model_dir / "generation_config.json"
    generation = (
        _read(generation_path, _GenerationFile) if generation_path.is_file() else _GenerationFile()
    )
    eos = generation.eos_token_id if generation.eos_token_id is not None else file.eos_token_id
    bos = generation.bos_token_id if generation.bos_token_id is not None else file.bos_token_id
    return ModelConfig(
        name=model_name(model_dir),
        num_layers=file.num_hidden_layers,
        hidden_size=file.hidden_size,
        num_heads=file.num_attention_heads,
        num_kv_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=_head_dim(file),
        intermediate_size=file.intermediate_size,
        vocab_size=file.vocab_size,
        max_context_length=file.max_position_embeddings or 2048,
        rope_theta=_rope_theta(file),
        rms_norm_eps=1e-6 if file.rms_norm_eps is None else file.rms_norm_eps,
        tie_word_embeddings=bool(file.tie_word_embeddings),
        bos_token_id=bos,
        eos_token_ids=_as_tuple(eos),
        temperature=1.0 if generation.temperature is None else generation.temperature,
        top_p=1.0 if generation.top_p is None else generation.top_p,
        top_k=generation.top_k or 0,
    )


def model_name(model_dir: Path) -> str:
    """Return the name in our manifest, else that of the hub's cache folder, else the folder's."""
    with contextlib.suppress(ModelError):
        if name := _read(model_dir / MANIFEST_FILE, _Manifest).name:
            return name
    directory = model_dir.resolve()
    if directory.parent.name == "snapshots":
        return directory.parent.parent.name.removeprefix("models--").replace("--", "/")
    return directory.name


def model_fingerprint(model_dir: Path) -> str:
    """
    Return 16 hexadecimal digits that change with configuration, tokenizer or weights.

    Of the weights their headers, sizes and samples count: a few bytes changed by hand go unseen.
    """
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        path = model_dir / name
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{name} {len(content)}\n".encode() + content)
    for path in sorted(model_dir.glob("*.safetensors")):
        header = read_header_bytes(path)
        digest.update(f"{path.name} {path.stat().st_size} {len(header)}\n".encode() + header)
        _update_with_samples(digest, path, 8 + len(header))
    return digest.hexdigest()[:16]


def _update_with_samples(digest: "hashlib._Hash", path: Path, start: int) -> None:
    stride = max((path.stat().st_size - start) // _NUM_SAMPLES, 1)
    with path.open("rb") as file:
        for sample_idx in range(_NUM_SAMPLES):
            file.seek(start + sample_idx * stride)
            digest.update(file.read(_NUM_SAMPLE_BYTES))


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ModelError(f"{path}: {error}") from error


def _why_unserved(file: _ConfigFile) -> str | None:
    """Name the first property that the forward pass does not know, or None."""
    rope = file.rope_parameters or file.rope_scaling or _Rope()
    rope_type = rope.rope_type or rope.type or "default"
    rotary_factor = rope.partial_rotary_factor or file.partial_rotary_factor or 1.0
    window_limits = (
        file.sliding_window is not None
        and file.use_sliding_window is not False
        and file.sliding_window < (file.max_position_embeddings or 0)
    )
    layer_types = set(file.layer_types or ()) - {"full_attention"}
    checks = (
        (file.model_type not in _MODEL_TYPES, f"model_type {file.model_type!r}"),
        (file.quantization_config is not None, "quantization_config (quantized weights)"),
        (window_limits, f"sliding_window {file.sliding_window}"),
        (bool(layer_types), f"layer_types {sorted(layer_types)}"),
        (rope_type != "default", f"rope scaling {rope_type!r}"),
        (rotary_factor != 1.0, f"partial_rotary_factor {rotary_factor}"),
        (file.hidden_act not in (None, "silu"), f"hidden_act {file.hidden_act!r}"),
        (bool(file.attention_bias), "attention_bias"),
        (bool(file.mlp_bias), "mlp_bias"),
    )
    what = next((what for is_unserved, what in checks if is_unserved), None)
    return what and f"{what} is not supported (model types: {', '.join(_MODEL_TYPES)})"


def _why_inconsistent(file: _ConfigFile) -> str | None:
    sizes = {
        "num_hidden_layers": file.num_hidden_layers,
        "hidden_size": file.hidden_size,
        "num_attention_heads": file.num_attention_heads,
        "num_key_value_heads": file.num_key_value_heads or file.num_attention_heads,
        "intermediate_size": file.intermediate_size,
        "vocab_size": file.vocab_size,
        "max_position_embeddings": file.max_position_embeddings or 2048,
    }
    for key, size in sizes.items():
        if size <= 0:
            return f"{key} is {size}, which is not positive"
    if file.num_attention_heads % sizes["num_key_value_heads"]:
        return "num_attention_heads is no multiple of num_key_value_heads"
    if _head_dim(file) <= 0 or _head_dim(file) % 2:
        return f"head_dim {_head_dim(file)} is no positive even number"
    return None


def _head_dim(file: _ConfigFile) -> int:
    if file.head_dim is not None:
        return file.head_dim
    return file.hidden_size // file.num_attention_heads


def _rope_theta(file: _ConfigFile) -> float:
    given = (file.rope_parameters and file.rope_parameters.rope_theta) or file.rope_theta
    return 10_000.0 if given is None else given


def _as_tuple(eos: int | list[int] | None) -> tuple[int, ...]:
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
