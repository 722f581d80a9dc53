"""
Frozen bytes of every message: an old service and a new one must go on understanding each other.

A changed byte is a changed protocol. A new field (with a default) changes the rich sample (see
`samples/`): move its frozen file to `golden/older/` under a name of its own, where it is read for
ever, and write it anew.
"""

import importlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.shared.messages.codec import decode_request, decoder_of, encode

from .samples import clients, draft, jobs, kv, reports, traces

GOLDEN = Path(__file__).parent / "golden"
MODULES = ("common", "generate", "jobs", "kv", "draft", "reports", "traces")

SAMPLES = {
    **clients.SAMPLES,
    **jobs.SAMPLES,
    **kv.SAMPLES,
    **draft.SAMPLES,
    **reports.SAMPLES,
    **traces.SAMPLES,
}

SEEN_BY_CLIENTS = (
    "generate_request",
    "accepted",
    "token_frame",
    "finished",
    "failed",
    "completion",
    "cancel",
    "cancelled",
    "resume",
    "audit",
    "audited",
    "trace_request",
    "trace_found",
    "traces_found",
)

CASES = [
    (name, size, encoding)
    for name in SAMPLES
    for size in ("rich", "minimal")
    for encoding in ("msgpack", "json")
    if encoding == "msgpack" or name in SEEN_BY_CLIENTS
]


def sample_of(name: str, size: str) -> msgspec.Struct:
    return SAMPLES[name][("rich", "minimal").index(size)]


def read_golden(path: Path) -> bytes:
    text = path.read_text(encoding="utf-8")
    return bytes.fromhex(text) if path.suffix == ".hex" else text.removesuffix("\n").encode()


def write_golden(path: Path, payload: bytes) -> None:
    """Write a missing file; what stands is the protocol and is never overwritten."""
    text = payload.decode() if path.suffix == ".json" else payload.hex("\n", 32)
    with path.open("x", encoding="utf-8") as file:
        file.write(text + "\n")


@pytest.mark.parametrize(("name", "size", "encoding"), CASES)
def test_bytes_are_those_that_were_frozen(name: str, size: str, encoding: Any) -> None:
    message = sample_of(name, size)
    path = GOLDEN / f"{name}.{size}.{'json' if encoding == 'json' else 'msgpack.hex'}"
    payload = encode(message, encoding)
    if not path.exists() and os.environ.get("SLIPSTREAM_WRITE_GOLDEN") == "1":
        write_golden(path, payload)
    if not path.exists():
        pytest.fail(
            f"golden/{path.name} is missing; after a look at the new bytes write it with "
            "`SLIPSTREAM_WRITE_GOLDEN=1 pytest tests/wire`"
        )
    frozen = read_golden(path)

    assert frozen == payload


@pytest.mark.parametrize(("name", "size", "encoding"), CASES)
def test_frozen_bytes_are_still_understood(name: str, size: str, encoding: Any) -> None:
    message = sample_of(name, size)
    path = GOLDEN / f"{name}.{size}.{'json' if encoding == 'json' else 'msgpack.hex'}"
    decode = decode_request if name == "generate_request" else decoder_of(type(message)).decode

    assert message == decode(read_golden(path))


def test_everything_that_travels_has_a_sample() -> None:
    """Tagged structs travel; GenerateRequest has no tag, so that clients need to send none."""
    tags = {
        kind.__struct_config__.tag
        for module in MODULES
        for kind in vars(importlib.import_module(f"slipstream.shared.messages.{module}")).values()
        if isinstance(kind, msgspec.StructMeta) and kind.__struct_config__.tag is not None
    }

    assert tags | {"generate_request"} == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_of_the_type_they_are_named_after(name: str) -> None:
    rich, minimal = SAMPLES[name]

    assert type(rich) is type(minimal)
    assert rich.__struct_config__.tag in {name, None}


def default_of(field: msgspec.structs.FieldInfo) -> object:
    """Return a field's default, or NODEFAULT for a required one."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


@pytest.mark.parametrize("name", SAMPLES)
def test_rich_sample_sets_every_field_and_minimal_one_none(name: str) -> None:
    rich, minimal = SAMPLES[name]
    optional = [f for f in msgspec.structs.fields(rich) if not f.required]
    left_out = [f.name for f in optional if getattr(rich, f.name) == default_of(f)]
    set_anyway = [f.name for f in optional if getattr(minimal, f.name) != default_of(f)]

    assert ([], []) == (left_out, set_anyway)


def test_bytes_of_older_versions_are_still_understood() -> None:
    """What lies in `golden/older/` is named `<message>.<anything>.json` or `.msgpack.hex`."""
    for path in (GOLDEN / "older").glob("*.*"):
        kind = type(SAMPLES[path.name.partition(".")[0]][0])

        assert isinstance(decoder_of(kind).decode(read_golden(path)), kind), path.name


def test_no_golden_file_is_left_over() -> None:
    known = {
        f"{name}.{size}.{'json' if encoding == 'json' else 'msgpack.hex'}"
        for name, size, encoding in CASES
    }

    assert known == {path.name for path in GOLDEN.iterdir() if path.is_file()}
