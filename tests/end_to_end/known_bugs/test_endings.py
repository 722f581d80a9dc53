"""Known bugs of endings: finish reasons and usage, streamed and plain."""

from typing import Any

import pytest

from tests.end_to_end import client
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_CONTEXT = 8192
_CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0}
_PATHS: list[dict[str, Any]] = [
    {"route": "remote"},
    {"route": "local"},
    {"route": "remote", "speculation": "off"},
]


@pytest.mark.parametrize("path", _PATHS, ids=str)
async def test_b51_usage_of_a_stream_is_that_of_the_plain_answer(
    roomy: client.Client, path: dict[str, Any]
) -> None:
    request = {**_CHAT, **path, "max_tokens": 7, "ignore_eos": True}

    plain = await roomy.ask(request)
    found = await roomy.stream(request)

    names = ("num_prompt_tokens", "num_output_tokens")
    usage = [plain["usage"][name] for name in names]
    assert usage == [found.ending["usage"][name] for name in names]
    assert 7 == usage[1] == len(found.token_ids) == found.ending["num_tokens"]
    (accepted,) = [each for each in found.messages if each["type"] == "accepted"]
    assert usage[0] == accepted["num_prompt_tokens"]
    # Nothing but the ending carries it.
    assert [found.ending] == [each for each in found.messages if "usage" in each]


@pytest.mark.parametrize("kind", ["max_tokens", "end of text", "stop string", "stop token"])
async def test_b54_the_ending_says_why(
    roomy: client.Client, decode: recipes.Decode, kind: str
) -> None:
    known = await recipes.baseline(roomy, decode, {**_CHAT, "max_tokens": 128})
    assert "stop" == known.answer["choices"][0]["finish_reason"], "this one must end by itself"
    stop, token_id = "".join(known.pieces[2:4]), known.token_ids[3]
    fields, expected = {
        "max_tokens": ({"max_tokens": 3}, ("length", None)),
        "end of text": ({"max_tokens": 128}, ("stop", None)),
        "stop string": ({"max_tokens": 128, "stop": stop}, ("stop", stop)),
        "stop token": ({"max_tokens": 128, "stop_token_ids": [token_id]}, ("stop", token_id)),
    }[kind]

    plain = await roomy.ask({**_CHAT, **fields})
    found = await roomy.stream({**_CHAT, **fields})

    (choice,) = plain["choices"]
    assert expected == (choice["finish_reason"], choice.get("stop_reason"))
    assert expected == (found.ending["finish_reason"], found.ending.get("stop_reason"))
    assert 1 == len(found.endings)
    assert found.ending == found.messages[-1]
    assert choice["text"] == found.text
    assert choice["token_ids"] == found.token_ids


async def test_b54_the_end_of_the_context_is_a_length(fake: client.Client) -> None:
    request = {"prompt": "x" * (_CONTEXT - 5), "max_tokens": 100, "ignore_eos": True}

    plain = await fake.ask(request)
    found = await fake.stream(request)

    assert 5 == len(client.token_ids_of(plain)) == len(found.token_ids)
    assert "length" == plain["choices"][0]["finish_reason"] == found.ending["finish_reason"]
