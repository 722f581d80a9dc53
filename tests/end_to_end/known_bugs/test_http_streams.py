"""Known bugs of answers over HTTP: usage, endings and calls of tools, streamed and plain."""

import json
from typing import Any

import pytest

from tests.end_to_end import client, http_client
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0}
_PATHS = [(http_client.CHAT, _CHAT), (http_client.TEXT, {"prompt": "Once", "temperature": 0})]
_GET_TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Tell the time in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(("path", "source"), _PATHS, ids=["chat", "text"])
@pytest.mark.parametrize("speculation", ["ngram", "off"])
async def test_b51_usage_comes_once_after_all_choices_and_only_when_asked_for(
    roomy_http: http_client.HttpClient, path: str, source: dict[str, Any], speculation: str
) -> None:
    request = {**source, "max_tokens": 7, "ignore_eos": True, "speculation": speculation}

    plain = await roomy_http.post(path, client.encode(request))
    asked = {**request, "stream_options": {"include_usage": True}}
    found = await roomy_http.stream(path, asked)
    without = await roomy_http.stream(path, request)

    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    usage = {name: plain.body["usage"][name] for name in names}
    *others, last = found.chunks
    assert 7 == usage["completion_tokens"]
    assert [] == last["choices"]
    assert usage == {name: last["usage"][name] for name in names}
    assert {None} == {chunk["usage"] for chunk in others}
    assert all(chunk["choices"] for chunk in others)
    assert found.is_done
    assert [] == [chunk for chunk in without.chunks if chunk.get("usage") or not chunk["choices"]]
    assert plain.text == found.text == without.text


@pytest.mark.parametrize("kind", ["max_tokens", "end of text", "stop string", "stop token"])
async def test_b54_the_last_piece_of_a_stream_says_why_it_ended(
    roomy_http: http_client.HttpClient, roomy: client.Client, decode: recipes.Decode, kind: str
) -> None:
    known = await recipes.baseline(roomy, decode, {**_CHAT, "max_tokens": 128})
    stop, token_id = "".join(known.pieces[2:4]), known.token_ids[3]
    fields, expected = {
        "max_tokens": ({"max_tokens": 3}, ("length", None)),
        "end of text": ({"max_tokens": 128}, ("stop", None)),
        "stop string": ({"max_tokens": 128, "stop": stop}, ("stop", stop)),
        "stop token": ({"max_tokens": 128, "stop_token_ids": [token_id]}, ("stop", token_id)),
    }[kind]

    plain = await roomy_http.chat({**_CHAT, **fields})
    found = await roomy_http.stream(http_client.CHAT, {**_CHAT, **fields})

    (ending,) = found.endings
    assert expected == (plain.choice["finish_reason"], plain.choice["stop_reason"])
    assert expected == (ending["finish_reason"], ending["stop_reason"])
    assert ending == found.pieces[-1]
    assert found.is_done
    assert plain.text == found.text
    # A role alone would pass for a first token: it comes with the first words.
    assert [True] + [False] * (len(found.pieces) - 1) == [
        "role" in piece["delta"] for piece in found.pieces
    ]
    assert found.pieces[0]["delta"]["content"]


@pytest.mark.slow
async def test_b54_the_end_of_the_context_is_a_length(
    roomy_http: http_client.HttpClient,
) -> None:
    ids = [1000 + number % 1000 for number in range(8192 - 5)]
    request = {"prompt": ids, "temperature": 0, "max_tokens": 5, "ignore_eos": True}

    too_long = await roomy_http.complete({**request, "max_tokens": 6})
    plain = await roomy_http.complete(request)
    found = await roomy_http.stream(http_client.TEXT, request)

    assert "length" == plain.choice["finish_reason"] == found.endings[0]["finish_reason"]
    assert 5 == plain.body["usage"]["completion_tokens"]
    # The documented rule: it is cut where the context ends.
    assert (200, 5) == (too_long.status, too_long.body["usage"]["completion_tokens"])


@pytest.mark.parametrize(
    "choice", [{"type": "function", "function": {"name": "get_time"}}, "required"], ids=str
)
async def test_b55_a_call_ends_alike_and_its_arguments_are_json(
    roomy_http: http_client.HttpClient, choice: object
) -> None:
    request = {
        "messages": [{"role": "user", "content": "What time is it in Rome?"}],
        "tools": [_GET_TIME],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 100,
    }

    plain = await roomy_http.chat(request)
    found = await roomy_http.stream(http_client.CHAT, request)

    (call,) = plain.choice["message"]["tool_calls"]
    parts = [each for piece in found.pieces for each in piece["delta"].get("tool_calls", [])]
    arguments = "".join(part["function"].get("arguments", "") for part in parts)
    assert "tool_calls" == plain.choice["finish_reason"] == found.endings[0]["finish_reason"]
    assert "get_time" == call["function"]["name"] == parts[0]["function"]["name"]
    assert {"city"} == set(json.loads(arguments))
    assert call["function"]["arguments"] == arguments
    assert {0} == {part["index"] for part in parts}
    assert not plain.choice["message"]["content"]
    assert "" == found.text
