"""Every field of a request: what is refused, by which name and limit, and what just passes."""

import math
from typing import Any

import pytest

from slipstream.services.scheduler.validation import check_fields, check_token_ids, plain_messages
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.codec import decode_request, encode
from slipstream.shared.messages.generate import ChatMessage, ContentPart, GenerateRequest
from slipstream.shared.messages.packed import PackedInts

VOCAB_SIZE, CONTEXT = 1000, 2048

# Field, bad value, limit that the answer names.
BAD = [
    ("max_tokens", 0, 1),
    ("max_tokens", -1, 1),
    ("max_tokens", CONTEXT + 1, CONTEXT),
    ("max_tokens", 10**12, CONTEXT),
    ("min_tokens", -1, 0),
    ("min_tokens", CONTEXT + 1, CONTEXT),
    ("num_speculative_tokens", -1, 0),
    ("num_speculative_tokens", 65, 64),
    ("temperature", -0.1, 0),
    ("temperature", 2.1, 2),
    ("temperature", math.nan, 2),
    ("temperature", math.inf, 2),
    ("temperature", -math.inf, 2),
    ("top_p", -0.1, 0),
    ("top_p", 1.1, 1),
    ("top_p", math.nan, 1),
    ("top_k", -2, -1),
    ("top_k", 2**31, 2**31 - 1),
    ("min_p", -0.1, 0),
    ("min_p", 1.5, 1),
    ("repetition_penalty", 0.0, 0.01),
    ("repetition_penalty", 11.0, 10),
    ("repetition_penalty", math.nan, 10),
    ("presence_penalty", -2.5, -2),
    ("presence_penalty", 2.5, 2),
    ("frequency_penalty", -2.5, -2),
    ("frequency_penalty", 2.5, 2),
    ("seed", 2**63, 2**63 - 1),
    ("seed", -(2**63) - 1, -(2**63)),
    ("stop", [""], None),
    ("stop", "", None),
    ("stop", ["x"] * 17, 16),
    ("stop", "x" * 513, 512),
    ("stop_token_ids", [VOCAB_SIZE], VOCAB_SIZE - 1),
    ("stop_token_ids", [-1], VOCAB_SIZE - 1),
    ("stop_token_ids", [1] * 129, 128),
    ("logit_bias", {"x": 1.0}, None),
    ("logit_bias", {"-1": 1.0}, None),
    ("logit_bias", {"²": 1.0}, None),
    ("logit_bias", {str(VOCAB_SIZE): 1.0}, VOCAB_SIZE - 1),
    ("logit_bias", {"9" * 5000: 1.0}, VOCAB_SIZE - 1),
    ("logit_bias", {"1": 101.0}, 100),
    ("logit_bias", {"1": -101.0}, -100),
    ("logit_bias", {"1": math.nan}, 100),
    ("logit_bias", {str(i): 1.0 for i in range(1025)}, 1024),
    ("logprobs", -1, 0),
    ("logprobs", 21, 20),
    ("top_logprobs", 21, 20),
    ("top_logprobs", 3, None),
    ("priority", 101, 100),
    ("priority", -101, -100),
    ("tenant", "x" * 129, 128),
    ("cache_salt", "x" * 129, 128),
    ("client_request_id", "x" * 129, 128),
    ("batch_inbox", "slipstream.v1.generate", None),
    ("batch_inbox", "_INBOX.>", None),
    ("n", 17, 16),
    ("n", 0, 1),
    ("best_of", 2, 1),
    ("speculation", "magic", None),
    ("speculation_mode", "fast", None),
    ("prompt_logprobs", -1, 0),
    ("prompt_logprobs", 21, 20),
    ("tools", [{}], None),
    ("tool_choice", "auto", None),
    ("adapter", "x", None),
    ("request_key", "x", None),
    ("request_key", "", None),
]

GOOD: list[dict[str, Any]] = [
    {"max_tokens": 1, "min_tokens": 0},
    {"max_tokens": CONTEXT, "min_tokens": CONTEXT},
    {"num_speculative_tokens": 0},
    {"num_speculative_tokens": 64},
    {"temperature": 0, "top_p": 0, "min_p": 0},
    {"temperature": 2, "top_p": 1, "min_p": 1},
    {"top_k": -1},
    {"top_k": 2**31 - 1},
    {"repetition_penalty": 0.01, "presence_penalty": -2, "frequency_penalty": -2},
    {"repetition_penalty": 10, "presence_penalty": 2, "frequency_penalty": 2},
    {"seed": 2**63 - 1},
    {"seed": -(2**63)},
    {"stop": ["x" * 512] * 16},
    {"stop": "x"},
    {"stop": []},
    {"stop_token_ids": [0, VOCAB_SIZE - 1] * 64},
    {"logit_bias": {"0": -100.0, "007": 100.0, str(VOCAB_SIZE - 1): 0}},
    {"logprobs": True, "top_logprobs": 20},
    {"logprobs": 20},
    {"logprobs": False},
    {"priority": -100, "tenant": "x" * 128, "cache_salt": "é" * 128, "client_request_id": "x"},
    {"n": 16, "best_of": 16},
    {"n": 1, "best_of": 1, "echo": False, "tool_choice": "none"},
    {"speculation": "off"},
    {"speculation": "ngram"},
    {"speculation": "off", "speculation_mode": "exact"},
    {"speculation": "ngram", "num_speculative_tokens": 1, "speculation_mode": "rejection"},
    {"temperature": 0, "speculation_mode": "rejection"},
]


def check(**fields: Any) -> None:
    check_fields(GenerateRequest(**{"prompt": "x", **fields}), VOCAB_SIZE, CONTEXT)


@pytest.mark.parametrize(("field", "value", "limit"), BAD)
def test_a_bad_value_is_refused_by_field_and_limit(field: str, value: Any, limit: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(**{field: value})

    assert (field, limit) == (caught.value.field, caught.value.limit)
    assert len(str(caught.value)) < 200
    if limit is not None:
        assert str(limit) in str(caught.value)


@pytest.mark.parametrize("fields", GOOD)
def test_values_at_the_edge_pass(fields: dict[str, Any]) -> None:
    check(**fields)


def test_every_field_of_a_request_is_looked_at_or_known_to_need_none() -> None:
    """A new field must be checked, refused, or named here."""
    looked_at = {field for field, _, _ in BAD}
    types_suffice = {
        "stream",
        "echo",
        "ignore_eos",
        "skip_special_tokens",
        "model",
        "allow_other_numerics",
        "latency_class",
    }
    elsewhere = {"prompt", "messages", "prompt_token_ids", "deadline_ms", "route"}
    constraints = {"response_format", "guided_json", "guided_regex", "guided_choice"}
    known = looked_at | types_suffice | elsewhere | constraints

    assert set(GenerateRequest.__struct_fields__) == known


@pytest.mark.parametrize(
    ("field", "value"), [("speculation", "off"), ("num_speculative_tokens", 0)]
)
def test_rejection_mode_without_drafts_is_refused(field: str, value: Any) -> None:
    expected = f'speculation_mode: "rejection" .* {field} {value!r} has none; leave one out'
    with pytest.raises(InvalidRequestError, match=expected):
        check(**{field: value, "speculation_mode": "rejection"})


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"min_tokens: 5 is above max_tokens \(4\)"):
        check(min_tokens=5, max_tokens=4)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None, "messages": []}, "messages"),
        ({"prompt": None, "prompt_token_ids": PackedInts()}, "prompt_token_ids"),
        ({"messages": [ChatMessage("user", "x")]}, "messages"),
        ({"prompt_token_ids": PackedInts([1])}, "prompt_token_ids"),
        ({"prompt": "", "messages": []}, "messages"),
    ],
)
def test_exactly_one_source_of_the_prompt_is_taken(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(**fields)

    assert field == caught.value.field


def test_ids_outside_the_vocabulary_are_named_with_their_place() -> None:
    check_token_ids("prompt_token_ids", [0, VOCAB_SIZE - 1], VOCAB_SIZE)
    with pytest.raises(InvalidRequestError, match=r"token id 1000 at position 1 .*0 to 999"):
        check_token_ids("prompt_token_ids", [0, VOCAB_SIZE], VOCAB_SIZE)


def test_parts_of_text_are_joined() -> None:
    messages = [ChatMessage("user", [ContentPart("text", "a"), ContentPart("text", "b")])]

    assert [{"role": "user", "content": "ab"}] == plain_messages(messages)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (ChatMessage("user"), "messages[1].content"),
        (ChatMessage("user", [ContentPart("image_url")]), "messages[1].content"),
        (ChatMessage("user", [ContentPart("text")]), "messages[1].content"),
        (ChatMessage("tool", "x", tool_call_id="1"), "messages[1].tool_calls"),
        (ChatMessage("assistant", "x", tool_calls=[{}]), "messages[1].tool_calls"),
    ],
)
def test_messages_that_cannot_be_served_are_named(message: ChatMessage, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plain_messages([ChatMessage("user", "x"), message])

    assert field == caught.value.field


def test_nan_in_json_is_refused_by_field() -> None:
    request = decode_request(b'{"prompt": "x", "temperature": NaN}')
    with pytest.raises(InvalidRequestError, match="temperature"):
        check_fields(request, VOCAB_SIZE, CONTEXT)

    check_fields(decode_request(encode(GenerateRequest(prompt="x"))), VOCAB_SIZE, CONTEXT)
