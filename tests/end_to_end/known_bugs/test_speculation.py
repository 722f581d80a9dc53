"""Known bugs of speculation: with drafts a request says what it says without."""

from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.end_to_end import client
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(240)]

_CONTEXT = 8192
_LONG_S = 150.0
_NUM_DRAFTS = 6
_GREEDY = {"temperature": 0, "ignore_eos": True}
_ORBIT = "orbit " * 60
_LIST = "1. red apple\n2. green pear\n3. yellow lemon\n4. blue plum\n5. black cherry\n" * 4
_CEDAR = "Write the word cedar many times: cedar"
_ORDINARY = (
    "Rivers are",
    "The quick brown fox",
    "def fibonacci(n):\n    ",
    "Dear Sir or Madam,",
    "In 1969 the first",
    "Water boils at",
    "The three largest cities of France are",
    "Once upon a time there was",
    "To bake bread you need",
    "Q: What is 12 times 12?\nA:",
)
_OFF = {"speculation": "off"}
_ON = {"speculation": "ngram", "num_speculative_tokens": _NUM_DRAFTS}


async def test_b85_drafts_change_no_greedy_text(hard: client.Client, roomy: client.Client) -> None:
    """Nor what each token's logprobs are; together, in small chunks and among preemptions."""
    prompts = {_ORBIT: 128, **dict.fromkeys(_ORDINARY, 32)}
    requests = [
        {**_GREEDY, "prompt": prompt, "max_tokens": count, "logprobs": 2}
        for prompt, count in prompts.items()
    ]

    drafted = await recipes.together(hard, [{**each, **_ON} for each in requests], _LONG_S)
    plain = await recipes.together(roomy, [{**each, **_OFF} for each in requests], _LONG_S)

    assert [each["choices"] for each in plain] == [each["choices"] for each in drafted]
    assert drafted[0]["usage"]["num_accepted_tokens"] > 64
    assert drafted[0]["usage"]["num_steps"] < plain[0]["usage"]["num_steps"]


@pytest.mark.parametrize("kind", ["stop string", "stop token", "max_tokens"])
async def test_b87_the_earliest_end_wins_though_more_was_accepted(
    hard: client.Client, decode: recipes.Decode, kind: str
) -> None:
    request = {**_GREEDY, "prompt": _LIST, "max_tokens": 24}
    known = await recipes.baseline(hard, decode, {**request, **_OFF})
    stop = recipes.split_stop(known, num_tokens=2)
    at = _first_novelty(known)
    token_id = known.token_ids[at]
    fields, num_tokens, expected = {
        "stop string": ({"stop": stop}, None, ("stop", recipes.cut(known.text, stop))),
        "stop token": (
            {"stop_token_ids": [token_id]},
            at + 1,
            ("stop", "".join(known.pieces[:at])),
        ),
        "max_tokens": ({"max_tokens": 5}, 5, ("length", "".join(known.pieces[:5]))),
    }[kind]

    whole = await hard.ask({**request, **_ON})
    plain = await hard.ask({**request, **_ON, **fields})
    found = await hard.stream({**request, **_ON, **fields})

    assert whole["usage"]["num_accepted_tokens"] > 5, "else nothing was accepted beyond an end"
    assert recipes.said([known.answer]) == recipes.said([whole])
    (choice,) = plain["choices"]
    assert expected == (choice["finish_reason"], choice["text"])
    assert expected == (found.ending["finish_reason"], found.text)
    off = await hard.ask({**request, **_OFF, **fields})
    assert off["choices"] == plain["choices"]
    assert choice["token_ids"] == found.token_ids
    assert num_tokens in (None, len(found.token_ids))
    assert len(found.token_ids) == found.ending["usage"]["num_output_tokens"]


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 7, 16])
async def test_s216_usage_and_length_are_exact_when_every_draft_is_right(
    fake: client.Client, fake_tokenizer: Tokenizer, max_tokens: int
) -> None:
    """One forced token for ever is drafted perfectly."""
    forced = recipes.forced(fake_tokenizer.encode("a").ids[0], 16)
    request = {"prompt": "aaaaaaaa", **forced, "num_speculative_tokens": _NUM_DRAFTS}

    plain = await fake.ask({**request, "max_tokens": max_tokens})
    found = await fake.stream({**request, "max_tokens": max_tokens})

    assert "a" * max_tokens == client.text_of(plain) == found.text
    for usage in (plain["usage"], found.ending["usage"]):
        assert max_tokens == usage["num_output_tokens"]
        accepted, tested = usage.get("num_accepted_tokens", 0), usage.get("num_tested_tokens", 0)
        assert accepted <= tested <= usage.get("num_drafted_tokens", 0)
        assert accepted < max_tokens
        assert accepted > 0 or max_tokens < 16


@pytest.mark.parametrize("penalty", [-2, 0, 2])
async def test_b89_penalties_count_the_drafts_before_a_position(
    hard: client.Client, penalty: float
) -> None:
    request = {**_GREEDY, "prompt": _CEDAR, "max_tokens": 40, "frequency_penalty": penalty}

    on, off = await recipes.together(hard, [{**request, **_ON}, {**request, **_OFF}], _LONG_S)

    assert recipes.said([off]) == recipes.said([on])


async def test_b89_penalties_have_an_effect_under_speculation(hard: client.Client) -> None:
    request = {**_GREEDY, **_ON, "prompt": _CEDAR, "max_tokens": 40}

    answers = await recipes.together(
        hard, [{**request, "frequency_penalty": each} for each in (-2, 0, 2)], _LONG_S
    )

    assert 3 == len({client.text_of(answer) for answer in answers})


async def test_b91_each_token_has_its_logprobs(hard: client.Client) -> None:
    request = {**_GREEDY, "prompt": _ORBIT, "max_tokens": 48, "logprobs": 3}

    on = await hard.ask({**request, **_ON})
    off = await hard.ask({**request, **_OFF})

    assert on["usage"]["num_accepted_tokens"] > 0
    entries = on["choices"][0]["logprobs"]
    assert client.token_ids_of(on) == [entry[0] for entry in entries]
    assert off["choices"][0]["logprobs"] == entries
    assert any(entry[1] < -1e-6 for entry in entries)


async def test_b92_a_seed_gives_one_text_with_drafts_and_without(hard: client.Client) -> None:
    request = {"prompt": _LIST, "seed": 7, "temperature": 1.2, "max_tokens": 32}
    request |= {"ignore_eos": True, "top_p": 1}

    on = [await hard.ask({**request, **_ON}) for _ in range(3)]
    off = await hard.ask({**request, **_OFF})

    assert recipes.said([off] * 3) == recipes.said(on)


async def test_b93_seeded_and_unseeded_rows_do_not_mix(hard: client.Client) -> None:
    request: dict[str, Any] = {**_ON, "prompt": _LIST, "temperature": 0.7, "max_tokens": 32}
    request |= {"ignore_eos": True}
    seeded = [{**request, "seed": 3}, {**request, "seed": 4}]
    alone = await recipes.alone(hard, seeded)

    answers = await recipes.together(hard, [seeded[0], request, seeded[1], request], _LONG_S)

    assert recipes.said(alone) == recipes.said([answers[0], answers[2]])
    # What had no seed is told the one it got, and says the same with it.
    told = [{**request, "seed": answers[at]["seed"]} for at in (1, 3)]
    assert recipes.said([answers[1], answers[3]]) == recipes.said(
        await recipes.together(hard, told, _LONG_S)
    )


@pytest.mark.parametrize("route", ["remote", "local"])
async def test_b97_the_context_ends_between_drafts(
    fake: client.Client, fake_tokenizer: Tokenizer, route: str
) -> None:
    request = {
        "prompt": "a" * (_CONTEXT - 3),
        **recipes.forced(fake_tokenizer.encode("a").ids[0], 10),
        "num_speculative_tokens": 5,
        "route": route,
    }

    plain = await fake.ask(request)
    found = await fake.stream(request)

    assert "aaa" == client.text_of(plain) == found.text
    assert "length" == plain["choices"][0]["finish_reason"] == found.ending["finish_reason"]
    assert 3 == found.ending["usage"]["num_output_tokens"]


def _first_novelty(known: recipes.Baseline) -> int:
    """Return the first token from the third on that occurs nowhere before."""
    return next(
        at
        for at in range(2, len(known.token_ids) - 1)
        if known.token_ids[at] not in known.token_ids[:at]
    )
