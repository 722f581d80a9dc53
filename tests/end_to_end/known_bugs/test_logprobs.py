"""Known bugs of logprobs: what they mean, and how many there are."""

import asyncio
from typing import Any

import pytest

from tests.end_to_end import client, oracle
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_PROMPT = "The capital of France is"
_CHAT = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 6,
    "ignore_eos": True,
}
_TOLERANCE = 1e-3  # float32 on both sides, sums in another order
_NUM_TOP = 5


async def test_b42_a_logprob_is_the_raw_one_whatever_the_sampler_does(
    float32: client.Client, transformers_oracle: oracle.Oracle
) -> None:
    """Equal in every run, and equal to a plain forward pass of transformers."""
    request = {"prompt": _PROMPT, "max_tokens": 1, "logprobs": _NUM_TOP, "seed": 3}
    settings: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.2},
        {"temperature": 1.0},
        {"temperature": 1.9},
        {"temperature": 1.0, "top_p": 0.1},
        {"temperature": 1.0, "repetition_penalty": 2, "logit_bias": {"100": 50}},
    ]

    answers = await recipes.together(float32, [{**request, **each} for each in settings])

    expected = await asyncio.to_thread(transformers_oracle.next_logprobs, _PROMPT)
    (first, *rest) = [_entries(answer)[0] for answer in answers]
    for token_id, logprob, top_ids, top_logprobs in (first, *rest):
        assert first[2:] == [top_ids, top_logprobs]
        assert expected[token_id] == pytest.approx(logprob, abs=_TOLERANCE)
        for each, found in zip(top_ids, top_logprobs, strict=True):
            assert expected[each] == pytest.approx(found, abs=_TOLERANCE)
    assert sorted(expected, reverse=True)[:_NUM_TOP] == pytest.approx(first[3], abs=_TOLERANCE)


@pytest.mark.parametrize("num_top", [0, 1, 5, 20, None])
async def test_b43_there_are_as_many_as_were_asked_for(
    roomy: client.Client, num_top: int | None
) -> None:
    fields = {"logprobs": True} | ({} if num_top is None else {"top_logprobs": num_top})

    plain = await roomy.ask({**_CHAT, **fields})
    found = await roomy.stream({**_CHAT, **fields})

    entries = _entries(plain)
    assert client.token_ids_of(plain) == [entry[0] for entry in entries]
    for _, logprob, top_ids, top_logprobs in entries:
        assert (num_top or 0) == len(top_ids) == len(set(top_ids)) == len(top_logprobs)
        assert sorted(top_logprobs, reverse=True) == top_logprobs
        assert logprob <= 0
    streamed = {
        frame["index"] + at: entry  # what came twice counts once
        for frame in found.frames
        for at, entry in enumerate(frame.get("logprobs") or [])
    }
    assert dict(enumerate(entries)) == streamed


async def test_b43_the_sampled_token_stands_apart_whatever_its_rank(roomy: client.Client) -> None:
    unlikely = 4321
    request = {"prompt": _PROMPT, **recipes.forced(unlikely, 3), "logprobs": 2}

    entries = _entries(await roomy.ask(request))

    for token_id, logprob, top_ids, top_logprobs in entries:
        assert unlikely == token_id
        assert unlikely not in top_ids
        assert logprob < min(top_logprobs)


async def test_b43_none_come_unasked(roomy: client.Client) -> None:
    (plain, off) = await recipes.together(roomy, [_CHAT, {**_CHAT, "logprobs": False}])

    assert [None, None] == [each["choices"][0].get("logprobs") for each in (plain, off)]


async def test_b45_zero_means_those_of_the_sampled_tokens(roomy: client.Client) -> None:
    request = {"prompt": _PROMPT, "temperature": 0, "max_tokens": 6, "ignore_eos": True}

    entries = _entries(await roomy.ask({**request, "logprobs": 0}))
    best = _entries(await roomy.ask({**request, "logprobs": 1}))

    assert [[*entry[:2], [], []] for entry in best] == entries
    assert [[entry[0]] for entry in entries] == [entry[2] for entry in best]


def _entries(answer: client.Answer) -> list[list[Any]]:  # Any: as JSON has them
    """Return [token, its logprob, top ids, their logprobs] of each output position."""
    entries: list[list[Any]] = answer["choices"][0]["logprobs"]
    return entries
