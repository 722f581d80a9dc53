"""Requests in rejection mode through all services, on an engine that notices wrong KV."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from slipstream.shared.messages.generate import Completion, Finished
from slipstream.shared.model.tokenizer import Tokenizer

from .service_stack import LONG, Client, ServiceStack, oracle, until_empty

pytestmark = pytest.mark.nats

Start = Callable[..., Awaitable[ServiceStack]]

_NUM_TOKENS = 160
_LETTERS = "bfj"  # that the fake model likes alike


def _fields(tokenizer: Tokenizer) -> dict[str, Any]:  # Any: fields have several types
    """Return those of an answer of three letters: a likely one, and two at any position."""
    likely, *others = tokenizer.encode(_LETTERS)
    return {
        "logit_bias": {str(likely): 100, **{str(token_id): 97 for token_id in others}},
        "max_tokens": _NUM_TOKENS,
        "ignore_eos": True,
        "temperature": 2,
        "speculation_mode": "rejection",
        "num_speculative_tokens": 4,  # paying or not
    }


@pytest.mark.parametrize("route", ["remote", "local"])
async def test_drafts_are_taken_and_replaced_and_the_kv_of_all_is_right(
    start: Start, client: Client, tokenizer: Tokenizer, route: str
) -> None:
    """A rejected token's KV, and that of the drafts behind it, is overwritten."""
    # Time enough for every proposal: all services share this process's loop.
    stack = await start(decode={"draft_budget_ms": 500.0})
    answer = await client.ask(LONG, route=route, seed=3, **_fields(tokenizer))

    assert isinstance(answer, Completion)
    assert set(answer.choices[0].text) == {*_LETTERS}
    assert len(answer.choices[0].token_ids) == _NUM_TOKENS
    usage = answer.usage
    assert 0 < usage.num_accepted_tokens < usage.num_tested_tokens <= usage.num_drafted_tokens
    assert usage.num_steps < _NUM_TOKENS
    await until_empty(stack)


async def test_a_stream_in_rejection_mode_has_one_text_and_one_ending(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    stack = await start()
    async with client.stream(LONG, seed=4, stop=_LETTERS[:2], **_fields(tokenizer)) as stream:
        ending = await stream.ending()

    assert isinstance(ending, Finished)
    assert (len(stream.text), len(stream.token_ids)) == (ending.text_length, ending.num_tokens)
    assert _LETTERS[:2] not in stream.text
    assert "stop" == ending.finish_reason
    await until_empty(stack)


async def test_a_greedy_request_says_the_same_in_both_modes(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    await start()
    answer = await client.ask(LONG, max_tokens=60, temperature=0, speculation_mode="rejection")

    assert isinstance(answer, Completion)
    assert oracle(tokenizer.encode(LONG), 60) == list(answer.choices[0].token_ids)


async def test_without_drafts_the_mode_changes_no_token(
    start: Start, client: Client, tokenizer: Tokenizer
) -> None:
    """Where nothing is proposed both draw with the same noise."""
    await start(decode={"speculation": "off"})
    fields = {**_fields(tokenizer), "max_tokens": 40, "seed": 5}
    by_rejection = await client.ask(LONG, **fields)
    exact = await client.ask(LONG, **{**fields, "speculation_mode": "exact"})

    assert isinstance(by_rejection, Completion)
    assert isinstance(exact, Completion)
    assert exact.choices[0].token_ids == by_rejection.choices[0].token_ids
