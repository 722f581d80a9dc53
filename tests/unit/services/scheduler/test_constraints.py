"""What may constrain an answer: one field, checked before any work, and what it becomes."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.services.scheduler.admission import Admission
from slipstream.services.scheduler.constraints import check_constraint, constraint_of
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.codec import decode_request
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.tokenizer import Tokenizer

from .scheduler_samples import make_config

_SCHEMA = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "string"}}}
_TEXT = '{"type":"object","properties":{"b":{"type":"null"},"a":{"type":"string"}}}'


def _read(**fields: Any) -> Constraint | None:
    """Return the constraint of a request that came over the wire."""
    request = decode_request(json.dumps({"prompt": "x", **fields}).encode())
    requested = constraint_of(request)
    if requested is None:
        return None
    check_constraint(requested)
    return requested.constraint


def _wrapped(**wrapper: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": wrapper}


GOOD: list[tuple[dict[str, Any], Constraint | None]] = [
    ({}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, Constraint("json", '{"type":"object"}')),
    ({"response_format": _wrapped(schema=_SCHEMA)}, Constraint("json", _TEXT)),
    (
        {"response_format": _wrapped(schema=_SCHEMA, name="x", strict=True)},
        Constraint("json", _TEXT),
    ),
    ({"response_format": _wrapped(schema={}, strict=None)}, Constraint("json", "{}")),
    ({"guided_json": _SCHEMA}, Constraint("json", _TEXT)),
    ({"guided_json": json.dumps(_SCHEMA, indent=2)}, Constraint("json", _TEXT)),
    ({"guided_json": {"const": "ü\n"}}, Constraint("json", '{"const":"ü\\n"}')),
    ({"guided_regex": "[a-z]+"}, Constraint("regex", "[a-z]+")),
    ({"guided_choice": ["yes", "no way"]}, Constraint("regex", "yes|no way")),
    ({"guided_choice": ["a.b"]}, Constraint("regex", r"a\x{2e}b")),
]


@pytest.mark.parametrize(("fields", "constraint"), GOOD)
def test_fields_become_a_kind_and_a_text(
    fields: dict[str, Any], constraint: Constraint | None
) -> None:
    assert constraint == _read(**fields)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {}}, "its type must be"),
    ({"response_format": {"type": "grammar"}}, "its type must be"),
    ({"response_format": {"type": ["text"]}}, "its type must be"),
    ({"response_format": {"type": "json_schema"}}, "json_schema must be an object"),
    ({"response_format": {"type": "json_schema", "schema": {}}}, "json_schema must be an object"),
    ({"response_format": {"type": "json_schema", "json_schema": []}}, "json_schema must be"),
    ({"response_format": {"type": "json_schema", "json_schema": _SCHEMA}}, "json_schema must be"),
    ({"response_format": _wrapped(schema=5)}, "the schema must be an object"),
    ({"response_format": _wrapped(schema=None)}, "the schema must be an object"),
    ({"response_format": _wrapped(schema={"type": "objekt"})}, "Invalid type: objekt"),
    ({"response_format": _wrapped(schema={}, name=5)}, "name must be a string"),
    ({"response_format": _wrapped(schema={}, strict="yes")}, "strict must be true or false"),
    ({"guided_json": "{"}, "is no JSON"),
    ({"guided_json": "[" * 100_000}, "is no JSON"),
    ({"guided_json": "5"}, "the schema must be an object"),
    ({"guided_json": "true"}, "the schema must be an object"),
    ({"guided_json": '{"minimum": NaN}'}, "can't be written as JSON"),
    ({"guided_json": {"x-guidance": {"lenient": True}}}, "x-guidance is not supported"),
    ({"guided_json": {"oneOf": [{"type": "object"}, {"type": "object"}]}}, "oneOf"),
    ({"guided_regex": ""}, "is empty"),
    ({"guided_regex": "(a"}, "unclosed group"),
    ({"guided_choice": []}, "not empty"),
    ({"guided_choice": ["a", ""]}, "not empty"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_b113_what_cannot_be_a_constraint_is_refused_by_field(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _read(**fields)

    assert next(iter(fields)) == caught.value.field
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": 5},
        {"response_format": "json_object"},
        {"guided_json": 5},
        {"guided_regex": ["a"]},
        {"guided_choice": "yes"},
        {"guided_choice": [1]},
    ],
)
def test_a_wrong_type_is_refused_by_field(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _read(**fields)

    assert caught.value.field.startswith(next(iter(fields)))


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"guided_regex": "a" * 65_537}, 65_536),
        ({"guided_json": {"const": "a" * 65_536}}, 65_536),
        ({"guided_choice": ["ab"] * 1025}, 1024),
        ({"guided_choice": ["." * 20_000]}, 65_536),
    ],
)
def test_what_is_too_large_is_refused_with_the_limit(fields: dict[str, Any], limit: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(limit)) as caught:
        _read(**fields)

    assert (next(iter(fields)), limit) == (caught.value.field, caught.value.limit)


def test_only_one_constraint_is_taken() -> None:
    with pytest.raises(InvalidRequestError, match="response_format is given too") as caught:
        _read(response_format={"type": "json_object"}, guided_regex="a")

    assert "guided_regex" == caught.value.field


def test_a_choice_matches_its_entries_and_nothing_else() -> None:
    choices = [
        "a|b",
        "(",
        "\\d",
        "[x]",
        " ",
        "\n\t",
        "/",
        "<|im_end|>",
        "é̂",
        "😀",
        "{}",
        "$^",
        "\x00",
    ]
    constraint = _read(guided_choice=choices)
    assert constraint is not None
    pattern = re.sub(
        r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", constraint.text
    )

    assert all(re.fullmatch(pattern, choice) for choice in choices)
    assert not any(re.fullmatch(pattern, other) for other in ("a", "b", "1", "x", "", "((", "im"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("fake")
    return Tokenizer(write_fake_model(directory))


def _model(**fields: Any) -> ModelConfig:
    known: dict[str, Any] = {
        "name": "fake",
        "num_layers": 1,
        "hidden_size": 8,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 8,
        "intermediate_size": 16,
        "vocab_size": 259,
        "max_context_length": 64,
        "rope_theta": 1.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_ids": (257,),
    }
    return ModelConfig(**(known | fields))


def test_an_admitted_request_carries_its_constraint(tokenizer: Tokenizer) -> None:
    admission = Admission(make_config(), "fake", _model(), tokenizer)
    payload = msgspec.json.encode(GenerateRequest(prompt="x", guided_choice=["yes", "no"]))

    assert Constraint("regex", "yes|no") == admission.admit(payload, None).sampling.constraint


def test_a_model_that_cannot_end_is_not_constrained(tokenizer: Tokenizer) -> None:
    admission = Admission(make_config(), "fake", _model(eos_token_ids=()), tokenizer)
    payload = msgspec.json.encode(GenerateRequest(prompt="x", guided_regex="a"))
    with pytest.raises(InvalidRequestError, match="end-of-sequence") as caught:
        admission.admit(payload, None)

    assert "guided_regex" == caught.value.field
    assert admission.admit(b'{"prompt": "x"}', None).sampling.constraint is None
