"""Known bugs of lengths and sizes: too short, too long, too many."""

import re
import time
from typing import Any

import pytest

from tests.end_to_end import client, stack
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_CONTEXT = 8192
_VOCABULARY = 49_152
_AIM_S = 2.0  # a hundred times what it takes
_MAX_GROWTH_KIB = 64 * 1024  # less than a list of 100,000 strings in every form it passes through


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
async def test_b17_a_tiny_max_tokens_is_kept_to(roomy: client.Client, max_tokens: int) -> None:
    request = {"prompt": "Once", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}

    plain = await roomy.ask(request)
    found = await roomy.stream(request)

    assert max_tokens == len(client.token_ids_of(plain)) == len(found.token_ids)
    assert "length" == plain["choices"][0]["finish_reason"] == found.ending["finish_reason"]


async def test_b17_no_token_at_all_is_refused(roomy: client.Client) -> None:
    failed = await recipes.check_refused(roomy, {"prompt": "Once", "max_tokens": 0}, "max_tokens")

    assert 1 == failed["limit"]


@pytest.mark.parametrize(
    "source",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [""]},
        {"prompt_token_ids": []},
        {"messages": []},
    ],
    ids=str,
)
async def test_b20_a_request_without_a_token_is_refused(
    roomy: client.Client, source: dict[str, Any]
) -> None:
    (field,) = source

    await recipes.check_refused(roomy, {**source, "max_tokens": 4}, field)


async def test_b20_an_empty_message_still_has_the_template_s_tokens(roomy: client.Client) -> None:
    request = {"messages": [{"role": "user", "content": ""}], "max_tokens": 4}

    answer = await roomy.ask({**request, "ignore_eos": True})

    assert answer["usage"]["num_prompt_tokens"] > 0
    assert 4 == len(client.token_ids_of(answer))


async def test_b21_a_prompt_ten_times_the_context_is_refused_with_both_numbers(
    roomy: client.Client,
) -> None:
    request = {"prompt": "word " * 10 * _CONTEXT}

    code = "context_length_exceeded"
    failed = await recipes.check_refused(roomy, request, "prompt", code)
    found = await roomy.stream(request)

    numbers = [int(each) for each in re.findall(r"\d+", failed["message"])]
    assert _CONTEXT in numbers
    assert max(numbers) >= 10 * _CONTEXT
    assert ["failed"] == [each["type"] for each in found.messages]
    assert (code, failed["message"]) == (found.ending["code"], found.ending["message"])


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("prompt_token_ids", {"prompt_token_ids": [1, 2, 999_999_999]}),
        ("prompt_token_ids", {"prompt_token_ids": [-1]}),
        ("prompt_token_ids", {"prompt_token_ids": [_VOCABULARY]}),
        ("top_logprobs", {"prompt": "Once", "logprobs": True, "top_logprobs": 1_000_000_000}),
        ("logprobs", {"prompt": "Once", "logprobs": 1_000_000_000}),
        ("n", {"prompt": "Once", "n": 5_000_000}),
        ("stop_token_ids", {"prompt": "Once", "stop_token_ids": [_VOCABULARY]}),
    ],
    ids=str,
)
async def test_b24_ids_and_counts_out_of_range_cost_nothing(
    roomy: client.Client, roomy_stack: stack.Stack, field: str, fields: dict[str, Any]
) -> None:
    pid = roomy_stack.pid("scheduler")
    before_kib = recipes.peak_kib(pid)
    began_s = time.monotonic()

    await recipes.check_refused(roomy, fields, field)

    assert time.monotonic() - began_s < _AIM_S
    assert recipes.peak_kib(pid) - before_kib < _MAX_GROWTH_KIB


async def test_b30_a_list_of_prompts_is_refused_whole(roomy: client.Client) -> None:
    """A message on NATS asks for one prompt; it fans out into nothing."""
    found = await roomy.stream({"prompt": ["word"] * 100_000})

    assert ["failed"] == [each["type"] for each in found.messages]
    assert ("invalid_request", "prompt") == (found.ending["code"], found.ending["field"])


async def test_s216_a_request_larger_than_the_whole_pool_is_refused_at_once(
    hard: client.Client,
) -> None:
    """And with what would help, in place of waiting for ever."""
    request = {"prompt": "word " * 400, "max_tokens": 600}

    failed = await recipes.check_refused(hard, request, None, "kv_too_large")

    assert "--kv-memory" in failed["message"]
