"""Known bugs of batches: what one request asks for must not reach another."""

import asyncio
import itertools
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.end_to_end import client
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_REST = {"max_tokens": 24, "ignore_eos": True}
_HOT = {**_REST, "prompt": "Once upon a time", "temperature": 1.0, "top_p": 1, "top_k": 0}
_KINDS: dict[str, recipes.Request] = {
    "seed": {**_HOT, "seed": 5},
    "top_k": {**_HOT, "seed": 6, "top_k": 3},
    "top_p": {**_HOT, "seed": 7, "top_p": 0.5},
    "min_p": {**_HOT, "seed": 8, "min_p": 0.2},
    "penalties": {
        **_HOT,
        "seed": 9,
        "repetition_penalty": 1.5,
        "presence_penalty": 1,
        "frequency_penalty": 1,
    },
    "bias": {**_HOT, "seed": 10, "logit_bias": {"100": 6, "101": -100}},
    "greedy": {**_HOT, "temperature": 0},
    "logprobs": {**_HOT, "seed": 12, "logprobs": 5},
    "stop": {**_HOT, "seed": 13, "stop": [" th", "e "]},
    "min_tokens": {**_HOT, "seed": 14, "min_tokens": 12, "ignore_eos": False},
}
_RHYME = {
    "prompt": "The cat sat on the mat." + " The cat sat on the mat." * 5,
    "temperature": 0,
    "max_tokens": 1,
    "ignore_eos": True,
}
_CHAT = {
    "messages": [{"role": "user", "content": "Name the days of the week."}],
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
}
_NUM_TOP = 20


async def test_b33_no_kind_of_sampling_reaches_its_neighbour(fake: client.Client) -> None:
    """Every pair, in one batch; each says what it says alone."""
    alone = dict(zip(_KINDS, await recipes.alone(fake, list(_KINDS.values())), strict=True))

    for first, second in itertools.combinations(_KINDS, 2):
        pair = await recipes.together(fake, [_KINDS[first], _KINDS[second]])

        assert recipes.said([alone[first], alone[second]]) == recipes.said(pair), (first, second)


async def test_b33_all_kinds_in_one_batch_of_a_real_model(roomy: client.Client) -> None:
    alone = await recipes.alone(roomy, list(_KINDS.values()))

    together = await recipes.together(roomy, list(_KINDS.values()))

    assert recipes.said(alone) == recipes.said(together)
    logprobs = list(_KINDS).index("logprobs")
    assert alone[logprobs]["choices"] == together[logprobs]["choices"]


async def test_b34_repetition_counts_the_prompt_presence_and_frequency_do_not(
    roomy: client.Client, tokenizer: Tokenizer
) -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
        {"repetition_penalty": 10},
    ]

    answers = await recipes.together(roomy, [{**_RHYME, **each} for each in fields])

    plain, presence, frequency, repetition = (client.token_ids_of(answer) for answer in answers)
    assert plain[0] in tokenizer.encode(_RHYME["prompt"]).ids, "else there is nothing to penalize"
    assert plain == presence == frequency
    assert plain != repetition


async def test_b35_a_penalty_of_zero_is_none(roomy: client.Client) -> None:
    absent, zero = await recipes.together(
        roomy, [_CHAT, {**_CHAT, "presence_penalty": 0, "frequency_penalty": 0}]
    )

    assert recipes.said([absent]) == recipes.said([zero])


async def test_b35_penalties_follow_their_formula(roomy: client.Client) -> None:
    """Raw logprobs tell what the best token is once each was lowered by what it had said."""
    presence, frequency = 0.7, 0.4
    request = {**_CHAT, "logprobs": _NUM_TOP, "speculation": "off"}

    answer = await roomy.ask(
        {**request, "presence_penalty": presence, "frequency_penalty": frequency}
    )

    token_ids = client.token_ids_of(answer)
    num_checked = 0
    for position, (token_id, entry) in enumerate(
        zip(token_ids, answer["choices"][0]["logprobs"], strict=True)
    ):
        _, _, top_ids, top_logprobs = entry
        said = token_ids[:position]
        lowered = {
            each: logprob - said.count(each) * frequency - (each in said) * presence
            for each, logprob in zip(top_ids, top_logprobs, strict=True)
        }
        best, second = sorted(lowered.values(), reverse=True)[:2]
        # Whoever stands below the twenty may win only if these have fallen under them.
        if best > top_logprobs[-1] and best - second > 1e-3:
            assert best == lowered[token_id]
            num_checked += 1
    assert num_checked > len(token_ids) / 2
    assert recipes.said([answer]) != recipes.said([await roomy.ask(request)])


async def test_b36_a_long_neighbour_pads_nobody(roomy: client.Client) -> None:
    pair = [
        {**_REST, "prompt": "Hi", "temperature": 0},
        {**_REST, "prompt": "word " * 200, "temperature": 0, "frequency_penalty": 1.05},
    ]

    alone = await recipes.alone(roomy, pair)
    together = await recipes.together(roomy, pair)

    assert recipes.said(alone) == recipes.said(together)


async def test_b38_a_seed_holds_beside_a_request_without_one(roomy: client.Client) -> None:
    seeded = {**_HOT, "seed": 1234, "temperature": 0.9}
    unseeded = {**_HOT, "temperature": 0.9}
    (alone,) = await recipes.alone(roomy, [seeded])

    pairs = [await recipes.together(roomy, [seeded, unseeded]) for _ in range(5)]

    assert [recipes.said([alone])] * 5 == [recipes.said(pair[:1]) for pair in pairs]
    assert 5 == len({pair[1]["seed"] for pair in pairs})


async def test_b38_many_at_once_draw_as_they_do_alone(fake: client.Client) -> None:
    requests = [{**_HOT, "seed": seed, "temperature": 2} for seed in range(24)]

    alone = await recipes.alone(fake, requests)
    together = await recipes.together(fake, requests)

    assert recipes.said(alone) == recipes.said(together)
    assert len({client.text_of(answer) for answer in alone}) > 20


async def test_b40_best_of_below_n_is_refused(roomy: client.Client) -> None:
    failed = await roomy.ask({**_HOT, "n": 3, "best_of": 2})

    assert ("failed", "invalid_request") == (failed["type"], failed.get("code"))
    assert failed["field"] in ("n", "best_of")


async def test_s216_greedy_stays_greedy_among_sampled_neighbours(roomy: client.Client) -> None:
    """Greedy is a branch, no small temperature; ties: tests/unit/shared/model/test_sampling.py."""
    greedy = {**_REST, "prompt": "red red red red", "temperature": 0}
    (alone,) = await recipes.alone(roomy, [greedy])

    answers = await asyncio.gather(
        *(roomy.ask({**greedy, "seed": seed}) for seed in range(4)),
        *(roomy.ask({**_HOT, "temperature": 2, "seed": seed}) for seed in range(4)),
    )

    assert recipes.said([alone]) * 4 == recipes.said(answers[:4])
