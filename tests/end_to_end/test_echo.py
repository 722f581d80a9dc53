"""The prompt in the answer: its text, its tokens, and what the model thinks of each of them."""

import pytest

from . import client, conftest, oracle, stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_TEXT = "The capital of France is Paris, and the capital of Italy is Rome. " * 4
_ROUNDING = 2e-4


async def test_b47_an_echoed_prompt_has_an_entry_a_token(
    real_client: client.Client, transformers_oracle: oracle.Oracle
) -> None:
    request = {"prompt": "The capital of France is Paris", "echo": True, "logprobs": 1}
    answer = await real_client.ask({**request, "max_tokens": 1, "temperature": 0})

    prompt = answer["prompt"]
    assert request["prompt"] == prompt["text"]
    assert answer["usage"]["num_prompt_tokens"] == len(prompt["token_ids"])
    assert len(prompt["token_ids"]) == len(prompt["logprobs"])
    assert prompt["logprobs"][0] is None
    scored = prompt["logprobs"][1:]
    assert prompt["token_ids"][1:] == [entry[0] for entry in scored]
    assert {1} == {len(entry[2]) for entry in scored}
    expected = transformers_oracle.logprobs(prompt["token_ids"])
    assert expected == pytest.approx([entry[1] for entry in scored], abs=_ROUNDING)
    assert 1 == len(answer["choices"][0]["logprobs"])


async def test_b18_an_echo_with_nothing_to_generate_is_refused_by_name(
    real_client: client.Client,
) -> None:
    request = {"prompt": "Paris is", "echo": True, "max_tokens": 0, "logprobs": 1}
    answer = await real_client.ask(request)

    assert ("failed", "max_tokens") == (answer["type"], answer["field"])


@pytest.mark.parametrize("num_tokens", [1, 2, 31, 32, 33, 65])
async def test_b49_the_second_answer_is_the_first(
    real_client: client.Client, num_tokens: int
) -> None:
    """Whatever of the prompt has been computed before; on every path that was asked for."""
    ids = [1000 + 7 * position for position in range(num_tokens)]
    request = {"prompt_token_ids": ids, "echo": True, "logprobs": 1, "max_tokens": 3, "seed": 5}
    answers = [await real_client.ask(request) for _ in range(2)]
    answers.append(await real_client.ask({**request, "route": "remote"}))
    stream = await real_client.stream(request)

    first = answers[0]["prompt"]
    assert [first] * 3 == [answer["prompt"] for answer in answers]
    assert first == stream.ending["prompt"]
    assert num_tokens == len(first["logprobs"])
    assert {"prompt_logprobs"} == {answer["route_reason"] for answer in answers}
    assert {0} == {answer["usage"].get("num_cached_tokens", 0) for answer in answers}


async def test_b101_logprobs_are_those_of_a_causal_forward_also_in_chunks_of_seven(
    start_stack: conftest.StartStack,
    real_stack: stack.Stack,
    real_client: client.Client,
    transformers_oracle: oracle.Oracle,
) -> None:
    request = {"prompt": _TEXT, "prompt_logprobs": 0, "max_tokens": 1}
    whole = await real_client.ask(request)
    arguments = ["--format", "float32", "--kv-memory", "64MiB", "--prefill", "0"]
    chunked = start_stack(arguments, {"SLIPSTREAM_TOKEN_BUDGET": "7"})
    async with client.connected(chunked.nats_url) as asking:
        in_chunks = await asking.ask(request)

    assert whole["prompt"]["logprobs"] == in_chunks["prompt"]["logprobs"]
    assert "" == whole["prompt"].get("text", ""), "only an echo repeats the text"
    expected = transformers_oracle.logprobs(whole["prompt"]["token_ids"])
    found = [entry[1] for entry in whole["prompt"]["logprobs"][1:]]
    assert expected == pytest.approx(found, abs=_ROUNDING)


async def test_an_echo_without_logprobs_is_text_alone_and_keeps_the_route(
    real_client: client.Client,
) -> None:
    request = {"prompt": _TEXT, "max_tokens": 2, "route": "remote"}
    answer = await real_client.ask({**request, "echo": True})

    assert _TEXT == answer["prompt"]["text"]
    assert "logprobs" not in answer["prompt"]
    assert "remote" == answer["route"]
    plain = await real_client.ask(request)
    assert "prompt" not in plain


@pytest.mark.slow
async def test_logprobs_of_a_prompt_survive_a_preemption(
    start_stack: conftest.StartStack,
) -> None:
    """In a pool that holds neither of two requests beside the other."""
    arguments = ["--format", "float32", "--kv-memory", "20MiB", "--prefill", "0"]
    running = start_stack(arguments, {"SLIPSTREAM_NUM_GRANTED_BLOCKS": "1"})
    request = {"prompt": _TEXT, "prompt_logprobs": 1, "max_tokens": 150, "ignore_eos": True}
    async with client.connected(running.nats_url) as asking:
        alone = await asking.ask({**request, "seed": 1})
        together = await asking.gather(*({**request, "seed": seed} for seed in range(1, 5)))

    assert sum(each["usage"].get("num_preemptions", 0) for each in together) > 0
    assert [alone["prompt"]] * 4 == [each["prompt"] for each in together]
    assert client.token_ids_of(alone) == client.token_ids_of(together[0])
