"""Bodies of the OpenAI API as requests of ours."""

from typing import Any

import pytest

from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.generate import ChatMessage, GenerateRequest
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.openai.batch_requests import request_of
from slipstream.shared.openai.fields import REFUSED

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def test_a_chat_is_taken_over_field_by_field() -> None:
    body = {
        "model": "m",
        "messages": MESSAGES,
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["a"],
        "seed": 3,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 4,
        "response_format": {"type": "json_object"},
    }

    assert GenerateRequest(
        model="m",
        messages=[ChatMessage(role="user", content="Hi")],
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        stop=["a"],
        seed=3,
        n=2,
        logprobs=True,
        top_logprobs=4,
        response_format={"type": "json_object"},
    ) == request_of(CHAT, body)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", {"prompt": "Hi"}),
        (["Hi"], {"prompt": "Hi"}),
        ([1, 2], {"prompt_token_ids": PackedInts([1, 2])}),
        ([[1, 2]], {"prompt_token_ids": PackedInts([1, 2])}),
    ],
)
def test_a_prompt_may_be_text_or_tokens(prompt: Any, expected: dict[str, Any]) -> None:
    assert GenerateRequest(**expected) == request_of(TEXT, {"prompt": prompt})


def test_how_long_an_answer_gets_is_the_scheduler_s_to_say_as_over_http() -> None:
    assert request_of(TEXT, {"prompt": "Hi"}).max_tokens is None
    assert 5 == request_of(TEXT, {"prompt": "Hi", "max_tokens": 5}).max_tokens
    assert request_of(CHAT, {"messages": MESSAGES}).max_tokens is None
    both = {"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 4}
    assert 4 == request_of(CHAT, both).max_tokens


@pytest.mark.parametrize("name", REFUSED)
def test_what_http_refuses_is_refused_here_too(name: str) -> None:
    asked = {"messages": MESSAGES}
    with pytest.raises(InvalidRequestError, match="is not supported; leave it out") as caught:
        request_of(CHAT, {**asked, name: {"what": 1}})

    assert name == caught.value.field
    for neutral in (None, *REFUSED[name]):
        assert request_of(CHAT, asked) == request_of(CHAT, {**asked, name: neutral})


def test_what_is_null_counts_as_left_out() -> None:
    body = {"messages": MESSAGES, "stop": None, "max_tokens": None, "suffix": None, "stream": None}

    assert request_of(CHAT, {"messages": MESSAGES}) == request_of(CHAT, body)


def test_what_only_keeps_accounts_changes_nothing() -> None:
    body = {"messages": MESSAGES, "user": "u", "metadata": {"a": "b"}, "store": False}

    assert request_of(CHAT, {"messages": MESSAGES}) == request_of(CHAT, body)


@pytest.mark.parametrize(
    ("endpoint", "body", "field", "words"),
    [
        (CHAT, {}, "messages", "is missing"),
        (TEXT, {}, "prompt", "is missing"),
        (CHAT, {"messages": MESSAGES, "prompt": "Hi"}, "prompt", "is not for"),
        (TEXT, {"prompt": ["a", "b"]}, "prompt", "holds 2 prompts"),
        (TEXT, {"prompt": "Hi", "suffix": "x"}, "suffix", "is not supported"),
        (TEXT, {"prompt": "Hi", "stream": True}, "stream", "answered in whole"),
        (TEXT, {"prompt": "Hi", "request_key": "x"}, "request_key", "is no field"),
        (CHAT, {"messages": MESSAGES, "temperature": "warm"}, "temperature", "Expected"),
        (CHAT, {"messages": [{"content": "Hi"}]}, "messages[0]", "role"),
    ],
)
def test_what_can_not_be_served_is_refused_by_name(
    endpoint: Any, body: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        request_of(endpoint, body)

    assert field == caught.value.field
