"""
Lines of the OpenAI Batch file format: requests in, answers out. Pure.

What identifies a line is its `custom_id` and its content, so that the same line has the same
identity in every run and in a longer version of its file, and a changed one another.
"""

import hashlib
from typing import Any, NamedTuple

import msgspec

from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion, GenerateRequest
from slipstream.shared.messages.whole_numbers import TOO_LARGE, too_large_in
from slipstream.shared.openai.batch_answers import Json, answer_body, error_body
from slipstream.shared.openai.batch_requests import ENDPOINTS, Endpoint, request_of
from slipstream.shared.openai.statuses import status_of

OK = 200
_MAX_ID_CHARACTERS = 512
_NUM_DIGITS = 32


class _Named(msgspec.Struct):
    custom_id: str


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of an output file. A `response` is what HTTP would have answered."""

    id: str
    custom_id: str | None
    response: dict[str, Any] | None  # Any: JSON of every shape
    error: dict[str, Any] | None  # Any: as above

    @property
    def is_answer(self) -> bool:
        """Whether the line was served."""
        return self.response is not None and self.response.get("status_code") == OK


_decode_row = msgspec.json.Decoder(Row).decode


def read_row(line: bytes) -> Row | None:
    """Return a line of an output file; None for what is none."""
    try:
        return _decode_row(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class BatchRequest(NamedTuple):
    """What a line asks for."""

    endpoint: Endpoint
    request: GenerateRequest


def custom_id_of(line: bytes) -> str | None:
    """Return a line's `custom_id`; None where it has none that can be read."""
    try:
        return msgspec.json.decode(line, type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def digest_of(line: bytes, salt: str = "") -> str:
    """Return what stands for a line, and for the run that it belongs to."""
    return hashlib.sha256(salt.encode() + b"\0" + line.strip()).hexdigest()[:_NUM_DIGITS]


def parse_line(line: bytes) -> BatchRequest:
    """Return what a line asks for. Raises InvalidRequestError, which names the field."""
    fields = _object_of(line)
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_ID_CHARACTERS:
        raise InvalidRequestError(
            "custom_id", f"must be a text of 1 to {_MAX_ID_CHARACTERS} characters"
        )
    if fields.get("method") != "POST":
        raise InvalidRequestError("method", f'is {_shown(fields.get("method"))}; it must be "POST"')
    endpoint = next((each for each in ENDPOINTS if each == fields.get("url")), None)
    if endpoint is None:
        raise InvalidRequestError(
            "url", f"is {_shown(fields.get('url'))}; it must be one of {', '.join(ENDPOINTS)}"
        )
    if not isinstance(fields.get("body"), dict):
        raise InvalidRequestError("body", "must be a JSON object")
    try:
        return BatchRequest(endpoint, request_of(endpoint, fields["body"]))
    except InvalidRequestError as error:
        where = f"body.{error.field}" if error.field else "body"
        reason = str(error).removeprefix(f"{error.field}: ")
        raise InvalidRequestError(where, reason, limit=error.limit) from error


def _object_of(line: bytes) -> dict[str, Any]:  # Any: JSON of every shape
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError("", f"is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise InvalidRequestError("", "is no JSON object")
    if too_large_in(line, found):
        raise InvalidRequestError("", TOO_LARGE)
    return found


def _shown(value: object) -> str:
    return "missing" if value is None else msgspec.json.encode(value).decode()[:64]


def answer_row(
    row_id: str, custom_id: str | None, endpoint: Endpoint, completion: Completion, created: int
) -> Row:
    """Return the row of a line that was served."""
    body = answer_body(endpoint, completion, created)
    return Row(row_id, custom_id, _response(OK, completion.request_id, body), None)


def failed_row(row_id: str, custom_id: str | None, failed: Failed) -> Row:
    """Return the row of a line that ended with an error of the service."""
    status, request_id = status_of(failed.code), failed.request_id or row_id
    return Row(row_id, custom_id, _response(status, request_id, error_body(failed)), None)


def bad_row(row_id: str, custom_id: str | None, number: int, error: InvalidRequestError) -> Row:
    """Return the row of a line that nobody was asked about: it says what is wrong with it."""
    return Row(
        row_id,
        custom_id,
        None,
        {
            "code": error.code,
            "message": f"line {number}: {error}",
            "param": error.field or None,
            "line": number,
        },
    )


def _response(status: int, request_id: str, body: Json) -> Json:
    return {"status_code": status, "request_id": request_id, "body": body}
