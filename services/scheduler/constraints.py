"""What a request says its answer must match: one field, understood and compiled, or refused."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slipstream.services.scheduler.schema_limits import check_combinations
from slipstream.shared.errors import ConstraintError, InvalidRequestError
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.constraint import OPTIONS_KEY

MAX_CONSTRAINT_BYTES = 65_536
MAX_CHOICE_ENTRIES = 1024

_ANY_OBJECT = '{"type":"object"}'
_KINDS = '"text", "json_object" or "json_schema"'


class RequestedConstraint(NamedTuple):
    """A constraint, and the field of the request that it came in."""

    field: str
    constraint: Constraint


def constraint_of(request: GenerateRequest) -> RequestedConstraint | None:
    """Read the one field that constrains the answer. Raises InvalidRequestError."""
    given = [field for field in _READERS if getattr(request, field) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequestError(
            given[1], f"{given[0]} is given too; send one of {', '.join(_READERS)}"
        )
    constraint = _READERS[given[0]](getattr(request, given[0]))
    return None if constraint is None else RequestedConstraint(given[0], constraint)


def check_constraint(requested: RequestedConstraint) -> None:
    """Compile it within the limits. Raises InvalidRequestError. Blocks for milliseconds."""
    field, constraint = requested
    num_bytes = len(constraint.text.encode())
    if num_bytes > MAX_CONSTRAINT_BYTES:
        raise InvalidRequestError(
            field,
            f"{num_bytes} bytes are above the limit of {MAX_CONSTRAINT_BYTES}",
            limit=MAX_CONSTRAINT_BYTES,
        )
    # Imported here: the library takes 8 MB and 50 ms, which a scheduler without constraints saves.
    from slipstream.shared.model.grammar import check  # noqa: PLC0415 - 8 MB that most processes never need

    try:
        check(constraint)
    except ConstraintError as error:
        raise InvalidRequestError(field, str(error)) from error


# Any, here and below: whatever JSON a client sent.
def _of_response_format(value: Mapping[str, Any]) -> Constraint | None:
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return Constraint("json", _ANY_OBJECT)
        case "json_schema":
            return _of_schema("response_format", _unwrapped(value.get("json_schema")))
    raise InvalidRequestError("response_format", f"its type must be {_KINDS}")


def _unwrapped(wrapper: Any) -> Any:
    if not isinstance(wrapper, Mapping) or "schema" not in wrapper:
        raise InvalidRequestError(
            "response_format", 'json_schema must be an object such as {"name": "x", "schema": {}}'
        )
    if not isinstance(wrapper.get("name", ""), str):
        raise InvalidRequestError("response_format", "json_schema.name must be a string")
    if not isinstance(wrapper.get("strict"), bool | None):
        raise InvalidRequestError("response_format", "json_schema.strict must be true or false")
    return wrapper["schema"]


def _of_guided_json(value: Any) -> Constraint:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError("guided_json", f"is no JSON: {error}") from error
    return _of_schema("guided_json", value)


def _of_schema(field: str, schema: Any) -> Constraint:
    if not isinstance(schema, dict):
        raise InvalidRequestError(field, "the schema must be an object")
    if OPTIONS_KEY in schema:
        raise InvalidRequestError(field, f"{OPTIONS_KEY} is not supported; leave it out")
    try:
        # Keys keep their order: answers have their properties in it.
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (ValueError, RecursionError, TypeError) as error:
        raise InvalidRequestError(field, "the schema can't be written as JSON") from error
    check_combinations(field, schema)
    return Constraint("json", text)


def _of_guided_regex(value: str) -> Constraint:
    if not value:
        raise InvalidRequestError("guided_regex", "is empty; no answer but an empty one matches it")
    return Constraint("regex", value)


def _of_guided_choice(choices: list[str]) -> Constraint:
    if not choices or not all(choices):
        raise InvalidRequestError("guided_choice", "must be a list of strings that are not empty")
    if len(choices) > MAX_CHOICE_ENTRIES:
        raise InvalidRequestError(
            "guided_choice",
            f"{len(choices)} entries are above the limit of {MAX_CHOICE_ENTRIES}",
            limit=MAX_CHOICE_ENTRIES,
        )
    return Constraint("regex", "|".join(map(_literal, choices)))


def _literal(text: str) -> str:
    """Return the regex that matches a text and nothing else."""
    return "".join(
        character if character.isalnum() or character == " " else f"\\x{{{ord(character):x}}}"
        for character in text
    )


_READERS: Mapping[str, Callable[[Any], Constraint | None]] = {
    "response_format": _of_response_format,
    "guided_json": _of_guided_json,
    "guided_regex": _of_guided_regex,
    "guided_choice": _of_guided_choice,
}
