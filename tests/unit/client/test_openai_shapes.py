"""Bodies, chunks and errors of the gateway."""

import email.utils
import json
import time

import pytest

from slipstream.client.openai_shapes import (
    chunk_of,
    failed_of,
    failed_of_body,
    path_and_body,
    retry_after_of,
)
from slipstream.client.options import request_of
from slipstream.shared.errors import ProtocolError

STREAMED = {"stream_options": {"include_usage": True}}


def test_a_text_goes_to_completions() -> None:
    path, body = path_and_body(request_of("Once", {"max_tokens": 4, "seed": 3}))

    assert "/v1/completions" == path
    assert {"prompt": "Once", "max_tokens": 4, "seed": 3, **STREAMED} == json.loads(body)


def test_token_ids_are_a_prompt_too() -> None:
    path, body = path_and_body(request_of([5, 6], {}))

    assert "/v1/completions" == path
    assert {"prompt": [5, 6], **STREAMED} == json.loads(body)


def test_messages_go_to_chat_completions() -> None:
    turn = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    path, body = path_and_body(request_of([turn], {}))

    assert "/v1/chat/completions" == path
    assert {"messages": [turn], **STREAMED} == json.loads(body)


def test_a_chunk_of_either_kind_has_a_text() -> None:
    chat = chunk_of(b'{"choices": [{"delta": {"role": "assistant", "content": "a"}}]}')
    plain = chunk_of(b'{"choices": [{"text": "b", "finish_reason": "length"}]}')
    last = chunk_of(b'{"choices": [], "usage": {"prompt_tokens": 1}, "new_field": [1]}')

    assert ("a", None) == (chat.text, chat.finish_reason)
    assert ("b", "length") == (plain.text, plain.finish_reason)
    assert ("", None) == (last.text, last.finish_reason)


@pytest.mark.parametrize("event", [b"{", b"[]", b'{"choices": 3}', b"\xff", b"[" * 10_000])
def test_what_is_no_chunk_is_said_to_be_none(event: bytes) -> None:
    with pytest.raises(ProtocolError, match="no chunk"):
        chunk_of(event)


def test_an_unknown_finish_reason_is_not_passed_on() -> None:
    with pytest.raises(ProtocolError, match="'tool_calls'"):
        _ = chunk_of(b'{"choices": [{"finish_reason": "tool_calls"}]}').finish_reason


def test_an_error_keeps_code_field_and_time() -> None:
    error = {"message": "too hot", "type": "t", "param": "temperature", "code": "range"}
    failed = failed_of_body(400, json.dumps({"error": error}).encode(), 1.5)

    assert ("range", "too hot", "temperature", 1500) == (
        failed.code,
        failed.message,
        failed.field,
        failed.retry_after_ms,
    )


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"message": "m", "type": "t", "code": None}, "t", "m"),
        ({"message": "m", "code": 400}, "fallback", "m"),
        ("just words", "fallback", "just words"),
        ({}, "fallback", "the server gave no reason"),
    ],
)
def test_of_an_error_is_taken_what_is_there(error: object, code: str, message: str) -> None:
    failed = failed_of(error, "fallback")

    assert (code, message) == (failed.code, failed.message)


def test_a_refusal_that_is_no_json_is_quoted() -> None:
    failed = failed_of_body(502, b"<h1>Bad gateway</h1>", None)

    assert ("http_502", "HTTP status 502: <h1>Bad gateway</h1>") == (failed.code, failed.message)


def test_a_time_to_wait_may_be_exact_or_whole_or_a_date() -> None:
    in_a_minute = email.utils.formatdate(time.time() + 60, usegmt=True)

    assert 1.25 == retry_after_of({"retry-after-ms": "1250", "retry-after": "2"})
    assert 2 == retry_after_of({"retry-after": "2", "retry-after-ms": "soon"})
    assert 57 < (retry_after_of({"retry-after": in_a_minute}) or 0) <= 60
    assert 0 == retry_after_of({"retry-after": email.utils.formatdate(0, usegmt=True)})
    assert 0 == retry_after_of({"retry-after": "-3"})


@pytest.mark.parametrize("header", ["soon", "inf", "nan", ""])
def test_a_time_that_can_not_be_read_is_none(header: str) -> None:
    assert retry_after_of({"retry-after": header}) is None
    assert retry_after_of({}) is None
