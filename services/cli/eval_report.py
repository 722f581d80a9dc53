"""What `slipstream eval` prints and writes: a row a format and text."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import msgspec
import numpy as np

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.accuracy import Accuracy, Figure
from slipstream.shared.measure.teacher_forcing import REFERENCE, Evaluation, Windows
from slipstream.shared.model.formats import Formats
from slipstream.shared.model.native_runner import NativeRunner

_HEADINGS = (
    *("format", "KV", "text", "tokens"),
    *("perplexity ratio", "mean KL", "99th percentile KL", "top-1 agreement, %"),
)
_NUM_NAMES = 3  # columns of words, which stand on the left
_NUM_DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Row:
    """What a format is like on a text, or on all of them."""

    formats: Formats
    text: str
    accuracy: Accuracy


def table(rows: Sequence[Row]) -> str:
    """Return aligned lines, with the 95 % interval behind each figure."""
    lines = [_HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if place < _NUM_NAMES else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def write_json(
    path: Path, evaluation: Evaluation, windows: Sequence[Windows], rows: Sequence[Row]
) -> None:
    """Write the rows and what they were computed from. Raises ConfigurationError."""
    content = {
        "model": evaluation.config.name,
        "numerics": NativeRunner.numerics,
        "reference": asdict(REFERENCE),
        "window": evaluation.window,
        "texts": [_described(text) for text in windows],
        "rows": [_fields_of(row) for row in rows],
    }
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    except OSError as error:
        raise ConfigurationError(
            f"--json {path} can't be written ({error.strerror}); name a file in a folder of yours"
        ) from error


def _cells(row: Row) -> tuple[str, ...]:
    accuracy = row.accuracy
    return (
        *(row.formats.weights, row.formats.kv, row.text, str(accuracy.num_tokens)),
        _figure(accuracy.perplexity_ratio, 4),
        _figure(accuracy.mean_kl, 5),
        _figure(accuracy.p99_kl, 4),
        _figure(accuracy.top1_agreement, 2, 100.0),
    )


def _figure(figure: Figure, num_digits: int, unit: float = 1.0) -> str:
    value, low, high = (
        f"{each * unit:.{num_digits}f}" for each in (figure.value, figure.low, figure.high)
    )
    return f"{value} [{low}, {high}]"


def _described(text: Windows) -> dict[str, object]:
    """Say which tokens they were: the default texts change with the version of Python."""
    token_ids = np.array(text.sequences, np.int32)
    digest = hashlib.sha256(token_ids.tobytes()).hexdigest()[:_NUM_DIGEST_CHARACTERS]
    return {"text": text.name, "num_windows": len(text.sequences), "tokens_sha256": digest}


def _fields_of(row: Row) -> dict[str, object]:
    """Return a flat object: a figure's interval stands beside it as `_low` and `_high`."""
    shown: dict[str, object] = {
        "format": row.formats.weights,
        "kv_format": row.formats.kv,
        "text": row.text,
    }
    for field in fields(row.accuracy):
        value = getattr(row.accuracy, field.name)
        if isinstance(value, Figure):
            shown[field.name] = value.value
            shown |= {f"{field.name}_low": value.low, f"{field.name}_high": value.high}
        else:
            shown[field.name] = value
    return shown
