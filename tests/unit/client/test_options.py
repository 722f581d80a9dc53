"""What a request is made of."""

from typing import Any

import pytest

from slipstream.client.options import Options, request_of, with_seed
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.generate import ChatMessage, GenerateRequest


def test_a_text_is_a_raw_prompt() -> None:
    request = request_of("Once", {"max_tokens": 4, "stop": ["."]})

    assert GenerateRequest(prompt="Once", max_tokens=4, stop=["."]) == request


def test_integers_are_token_ids() -> None:
    request = request_of([1, 2, 70_000], {})

    assert request.prompt_token_ids is not None
    assert [1, 2, 70_000] == list(request.prompt_token_ids)


def test_dictionaries_are_chat_messages() -> None:
    request = request_of([{"role": "user", "content": "hi"}], {"temperature": 0.0})

    assert [ChatMessage(role="user", content="hi")] == request.messages


def test_every_option_is_a_field_of_a_request() -> None:
    assert set(Options.__annotations__) <= set(GenerateRequest.__struct_fields__)


def test_an_unknown_option_is_a_type_error_with_a_hint() -> None:
    unknown: Any = {"max_token": 4}
    with pytest.raises(TypeError, match=r"'max_token'; did you mean 'max_tokens'\?"):
        request_of("Once", unknown)


@pytest.mark.parametrize("name", ["stream", "prompt", "request_key", "deadline_ms"])
def test_what_the_client_decides_itself_is_no_option(name: str) -> None:
    options: Any = {name: 1}
    with pytest.raises(TypeError, match=name):
        request_of("Once", options)


@pytest.mark.parametrize("question", [b"Once", 7, None])
def test_what_is_no_prompt_is_a_type_error(question: Any) -> None:
    with pytest.raises(TypeError, match="a prompt is a str"):
        request_of(question, {})


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ([{"content": "no role"}], "messages"),
        (["a", "b"], "messages"),
        ([1, -2], "prompt_token_ids"),
    ],
)
def test_what_can_not_be_sent_is_refused_by_name(question: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        request_of(question, {})

    assert field == raised.value.field


def test_a_request_without_a_seed_is_given_one_and_others_keep_theirs() -> None:
    seeds = {with_seed(GenerateRequest(prompt="Once")).seed for _ in range(20)}

    assert 20 == len(seeds - {None})
    assert 0 == with_seed(GenerateRequest(prompt="Once", seed=0)).seed
