"""The tokens are those of transformers, whichever way a request takes, alone or in a batch."""

import asyncio
from collections.abc import Sequence

import pytest

from slipstream.shared.bus.subjects import REPORT
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.reports import WorkerReport

from . import client, oracle, prompts

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_NUM_AT_A_TIME = 4
_BATCH = 16
_GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": oracle.NUM_TOKENS}
_LIST = "1. red apple\n2. green pear\n3. yellow lemon\n4. blue plum\n5. black cherry\n"
# It repeats itself, but not to the letter: some drafts are wrong.
_TALE = (
    "The cat sat on the mat and the dog sat on the log. The bird sat on the word and the frog sat "
    "on the hog. The cat sat on the"
)


@pytest.mark.parametrize("route", ["remote", pytest.param("local", marks=pytest.mark.slow)])
async def test_greedy_tokens_are_those_of_transformers(
    real_client: client.Client,
    real_prompts: list[prompts.Prompt],
    transformers_oracle: oracle.Oracle,
    route: str,
) -> None:
    answers = await _ask_all(real_client, real_prompts, route, _NUM_AT_A_TIME)

    lengths = [len(transformers_oracle.token_ids(prompt)) for prompt in real_prompts]
    assert 20 == len(lengths)
    assert len(set(lengths)) > 15
    assert 1 == min(lengths)
    assert max(lengths) >= 1490
    assert lengths == [answer["usage"]["num_prompt_tokens"] for answer in answers]
    assert {route} == {answer["route"] for answer in answers}
    await asyncio.to_thread(_check, transformers_oracle, real_prompts, answers)


async def test_sixteen_in_one_batch_get_the_tokens_of_transformers(
    real_client: client.Client,
    real_prompts: list[prompts.Prompt],
    transformers_oracle: oracle.Oracle,
) -> None:
    # The shortest, and more tokens than are compared: the last joins before the first ends.
    chosen = sorted(real_prompts, key=lambda each: len(transformers_oracle.token_ids(each)))
    chosen = chosen[:_BATCH]
    sizes: list[int] = []

    async def see(message: client.Msg) -> None:
        report = decoder_of(WorkerReport).decode(message.data)
        if report.role == "decode":
            sizes.append(sum(each.phase == "decoding" for each in report.held))

    await real_client.connection.subscribe(REPORT.wildcard, cb=see)
    answers = await _ask_all(real_client, chosen, "remote", _BATCH, max_tokens=300)

    assert _BATCH == max(sizes)
    await asyncio.to_thread(_check, transformers_oracle, chosen, answers)


async def test_the_capital_of_france_is_paris(real_client: client.Client) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]

    answer = await real_client.ask({"messages": question, "temperature": 0})

    assert "Paris" in client.text_of(answer)
    assert "stop" == answer["choices"][0]["finish_reason"]


@pytest.mark.parametrize("text", [_LIST * 4, _TALE], ids=["list", "tale"])
async def test_drafts_change_no_token(real_client: client.Client, text: str) -> None:
    """A text that repeats itself is drafted well; with and without drafts it goes on alike."""
    request = {**_GREEDY, "prompt": text, "route": "remote"}

    drafted = await real_client.ask(request)
    plain = await real_client.ask({**request, "speculation": "off", "cache_salt": "plain"})

    assert client.token_ids_of(plain) == client.token_ids_of(drafted)
    usage = drafted["usage"]
    assert usage["num_accepted_tokens"] > 0
    assert usage["num_steps"] < plain["usage"]["num_steps"]
    assert 0 == plain["usage"].get("num_drafted_tokens", 0)
    is_all_accepted = usage["num_tested_tokens"] == usage["num_accepted_tokens"]
    assert (text != _TALE) == is_all_accepted, usage


async def test_a_seed_fixes_the_tokens_and_a_request_without_one_is_told_its_own(
    real_client: client.Client,
) -> None:
    request = {"prompt": "Once upon a time", "temperature": 0.9, "max_tokens": 24}

    first = await real_client.ask(request)
    again = await real_client.ask({**request, "seed": first["seed"]})
    local = await real_client.ask({**request, "seed": first["seed"], "route": "local"})
    other = await real_client.ask({**request, "seed": first["seed"] ^ 1})

    assert client.token_ids_of(first) == client.token_ids_of(again)
    assert client.token_ids_of(first) == client.token_ids_of(local)
    assert client.token_ids_of(first) != client.token_ids_of(other)


async def _ask_all(
    asking: client.Client,
    chosen: Sequence[prompts.Prompt],
    route: str,
    num_at_a_time: int,
    max_tokens: int = oracle.NUM_TOKENS,
) -> list[client.Answer]:
    fields = {**_GREEDY, "max_tokens": max_tokens, "route": route}
    # Of its own, so that no prompt was computed by another test, on another route.
    fields["cache_salt"] = f"{route}, {num_at_a_time} at a time"
    limit = asyncio.Semaphore(num_at_a_time)

    async def ask(prompt: prompts.Prompt) -> client.Answer:
        async with limit:
            return await asking.ask({**prompt.fields, **fields}, timeout_s=150)

    return await asyncio.gather(*(ask(prompt) for prompt in chosen))


def _check(
    judge: oracle.Oracle, chosen: Sequence[prompts.Prompt], answers: Sequence[client.Answer]
) -> None:
    for prompt, answer in zip(chosen, answers, strict=True):
        judge.check(prompt, client.token_ids_of(answer)[: oracle.NUM_TOKENS])
