"""The model that a process serves: found, read and checked; no weights, no torch, no numpy."""

from dataclasses import dataclass
from pathlib import Path

import structlog

from slipstream.shared.config import ServiceConfig, WeightFormat
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import (
    ModelConfig,
    load_config,
    model_fingerprint,
    with_full_heads,
)
from slipstream.shared.model.formats import choose_formats
from slipstream.shared.model.store import resolve_model

log = structlog.get_logger()

FAKE_MODEL = "fake"


@dataclass(frozen=True)
class ServedModel:
    """A model directory that was read and found good."""

    name: str  # what clients call it
    directory: Path
    config: ModelConfig
    fingerprint: str
    layout: KvLayout
    weight_format: WeightFormat


def open_model(config: ServiceConfig) -> ServedModel:
    """Find the model, fetching it first where needed. Raises ModelError. Blocks."""
    spec = FAKE_MODEL if config.engine == "fake" else config.model
    directory = resolve_model(
        spec, config.cache_dir, report=lambda line: log.info("model", step=line)
    )
    model_config = load_config(directory)
    formats = choose_formats(
        directory, model_config, config.engine, config.weight_format, config.kv_format
    )
    if not config.is_sharing_heads:
        model_config = with_full_heads(model_config)
    layout = KvLayout(
        num_layers=model_config.num_layers,
        num_kv_heads=model_config.num_kv_heads,
        head_dim=model_config.head_dim,
        dtype=formats.kv,
        kind="fake" if config.engine == "fake" else "model",
    )
    return ServedModel(
        name=_served_name(spec),
        directory=directory,
        config=model_config,
        fingerprint=model_fingerprint(directory),
        layout=layout,
        weight_format=formats.weights,
    )


def _served_name(spec: str) -> str:
    """Return a local path's last part, else the name or hub id as given."""
    path = Path(spec)
    return path.stem if path.suffix == ".gguf" else path.name if path.is_absolute() else spec
