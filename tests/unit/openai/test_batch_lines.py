"""Lines of a batch: what they ask, who they are, and what is said of them."""

import json
from typing import Any

import msgspec
import pytest

from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.common import Failed
from slipstream.shared.openai.batch_lines import (
    bad_row,
    custom_id_of,
    digest_of,
    failed_row,
    parse_line,
    read_row,
)

URL = "/v1/completions"


def line(**changes: Any) -> bytes:
    fields = {"custom_id": "a", "method": "POST", "url": URL, "body": {"prompt": "Hi"}}
    return json.dumps({key: value for key, value in (fields | changes).items() if value}).encode()


def test_a_line_names_endpoint_and_request() -> None:
    endpoint, request = parse_line(line())

    assert (URL, "Hi") == (endpoint, request.prompt)


@pytest.mark.parametrize(
    ("content", "field", "words"),
    [
        (b"{", "", "is no JSON"),
        (b'"text"', "", "is no JSON object"),
        (b"\xff", "", "is no JSON"),
        (line(custom_id=None), "custom_id", "1 to 512 characters"),
        (line(custom_id=7), "custom_id", "1 to 512 characters"),
        (line(custom_id="x" * 513), "custom_id", "1 to 512 characters"),
        (line(method="GET"), "method", 'is "GET"; it must be "POST"'),
        (line(method=None), "method", "is missing"),
        (line(url="/v1/embeddings"), "url", 'is "/v1/embeddings"'),
        (line(body=None), "body", "must be a JSON object"),
        (line(body={"prompt": "Hi", "seed": "x"}), "body.seed", "Expected"),
        (line(body={"prompt": "Hi", "colour": 1}), "body.colour", "is no field of"),
    ],
)
def test_a_bad_line_names_its_field(content: bytes, field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_line(content)

    assert field == caught.value.field
    assert words in str(caught.value)


def test_the_row_of_a_bad_line_names_line_and_field() -> None:
    row = bad_row("id", "a", 3, InvalidRequestError("body.seed", "is odd"))

    assert row.response is None
    assert not row.is_answer
    assert {
        "code": "invalid_request",
        "message": "line 3: body.seed: is odd",
        "param": "body.seed",
        "line": 3,
    } == row.error


def test_the_row_of_a_failure_is_the_answer_that_http_would_have_had() -> None:
    row = failed_row("id", "a", Failed(code="overloaded", message="later"))

    assert row.response is not None
    assert (429, "overloaded", None) == (
        row.response["status_code"],
        row.response["body"]["error"]["code"],
        row.error,
    )


def test_the_same_line_is_the_same_whatever_ends_it() -> None:
    assert digest_of(b'{"a": 1}\n') == digest_of(b'{"a": 1}\r\n')
    assert 3 == len({digest_of(b"a"), digest_of(b"b"), digest_of(b"a", "again")})


def test_a_custom_id_is_read_where_there_is_one() -> None:
    assert ["a", None, None, None] == [
        custom_id_of(each) for each in (line(), b"{", b"[]", b'{"custom_id": 1}')
    ]


def test_a_row_is_read_as_it_was_written() -> None:
    row = failed_row("id", None, Failed(code="overloaded", message="later"))

    assert row == read_row(msgspec.json.encode(row))
    assert [None, None, None] == [read_row(each) for each in (b"{", b"{}", line())]


@pytest.mark.parametrize("name", ["method", "custom_id", "extra"])
def test_a_whole_number_that_no_message_can_pass_on_is_refused(name: str) -> None:
    large = b'{"%s": 1%s, "url": "/v1/completions", "body": {"prompt": "a"}}'
    with pytest.raises(InvalidRequestError, match="more than 64 bits"):
        parse_line(large % (name.encode(), b"0" * 30))
