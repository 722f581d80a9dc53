"""Answers under a constraint: they match it, and are the same on every path."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jsonschema
import pytest

from . import client, conftest, stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(240)]

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_FORM = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 24},
        "kind": {"enum": ["recipe", "poem", "letter"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
        "rating": {"type": "number", "minimum": 0, "maximum": 5},
        "is_public": {"type": "boolean"},
    },
    "required": ["title", "kind", "tags", "rating", "is_public"],
    "additionalProperties": False,
}
_JOKE = [{"role": "user", "content": "Tell a joke"}]
_DIGITS = "[0-9]{3}(, [0-9]{3}){6,20}"
_NUM_SEEDS = 20

Request = dict[str, Any]  # Any: fields of several types

# Over several blocks; the regex repeats itself, so that n-grams are found.
_REQUESTS: dict[str, Request] = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": _FORM}}},
    "object": {"response_format": {"type": "json_object"}, "temperature": 0, "min_tokens": 20},
    "regex": {"guided_regex": _DIGITS, "temperature": 0.3, "repetition_penalty": 1.02},
    "choice": {"guided_choice": ["a long walk", "a short walk", "no walk at all"], "logprobs": 2},
}


def _request(name: str) -> Request:
    base = {"messages": _JOKE, "max_tokens": 160, "seed": 11, "temperature": 1.0}
    return {**base, **_REQUESTS[name]}


def _schema(schema: object) -> Request:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.fixture(scope="module", params=[pytest.param("float32", marks=pytest.mark.slow), "int8"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[stack.Stack]:
    if request.param == "float32":
        yield request.getfixturevalue("real_stack")
        return
    request.getfixturevalue("packed_int8")
    arguments = ["--kv-memory", "512MiB", "--threads", "2", "--format", "int8"]
    with stack.running(arguments, tmp_path_factory.mktemp("int8")) as started:
        yield started


@pytest.fixture
async def asking(running: stack.Stack) -> AsyncIterator[client.Client]:
    async with client.connected(running.nats_url) as connected:
        yield connected


def _reason(answer: client.Answer) -> str:
    assert answer["type"] == "completion", answer
    return str(answer["choices"][0]["finish_reason"])


async def test_b111_every_finished_answer_validates(asking: client.Client) -> None:
    request = {
        "messages": _JOKE,
        "temperature": 1,
        "max_tokens": 200,
        "response_format": _schema(_PERSON),
    }
    answers = await asyncio.gather(
        *(asking.ask({**request, "seed": seed}) for seed in range(_NUM_SEEDS))
    )
    finished = [each for each in answers if _reason(each) == "stop"]

    assert len(finished) > _NUM_SEEDS // 2
    assert {"stop", "length"} >= {_reason(each) for each in answers}
    for each in finished:
        jsonschema.validate(json.loads(client.text_of(each)), _PERSON)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": _schema({"type": "objekt"})}, "objekt"),
        ({"response_format": _schema(5)}, "must be an object"),
        ({"response_format": {"type": "json_schema", "schema": _PERSON}}, "json_schema must be"),
        ({"guided_json": 5}, "int"),
        ({"guided_json": {"not": {}}}, "Unimplemented"),
        ({"guided_regex": "(a"}, "unclosed group"),
        ({"guided_choice": []}, "not empty"),
    ],
)
async def test_b113_a_broken_constraint_is_refused_by_field(
    asking: client.Client, fields: Request, message: str
) -> None:
    answer = await asking.ask({"messages": _JOKE, **fields})

    assert ("failed", "invalid_request") == (answer["type"], answer["code"])
    assert next(iter(fields)) == answer["field"]
    assert message in answer["message"]
    assert "completion" == (await asking.ask({"prompt": "Hello", "max_tokens": 1}))["type"]


@pytest.mark.parametrize("temperature", [0, 1])
async def test_b115_the_end_of_the_grammar_wins_over_min_tokens(
    asking: client.Client, temperature: float
) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    answer = await asking.ask(
        {
            "messages": _JOKE,
            "response_format": _schema({**schema, "additionalProperties": False}),
            "min_tokens": 64,
            "max_tokens": 128,
            "ignore_eos": True,
            "temperature": temperature,
            "seed": 1,
        }
    )

    assert "stop" == _reason(answer)
    assert len(client.token_ids_of(answer)) < 64
    assert {"ok"} == set(json.loads(client.text_of(answer)))


@pytest.mark.parametrize("name", _REQUESTS)
async def test_a_request_has_one_answer_on_every_path(asking: client.Client, name: str) -> None:
    """Prefilled here or there, with drafts or without, streamed or plain, alone or in a crowd."""
    request = _request(name)
    plain = await asking.ask({**request, "route": "remote", "speculation": "off"})
    expected = client.token_ids_of(plain)

    paths = {
        "local": {"route": "local", "speculation": "off"},
        "drafted": {"route": "remote"},
        "local, drafted": {"route": "local"},
    }
    found = {
        path: client.token_ids_of(await asking.ask({**request, **more}))
        for path, more in paths.items()
    }
    streamed = await asking.stream(request)
    found["streamed"] = streamed.token_ids
    for route in ("remote", "local"):
        answers = await asyncio.gather(
            asking.ask({**request, "route": route}),
            *(asking.ask(_stranger(route, number)) for number in range(8)),
        )
        found[f"{route}, among strangers"] = client.token_ids_of(answers[0])
        assert {"completion"} == {each["type"] for each in answers}

    assert dict.fromkeys(found, expected) == found
    assert client.text_of(plain) == streamed.text
    assert _reason(plain) == streamed.ending["finish_reason"]
    _check_text(name, client.text_of(plain), _reason(plain))


def _check_text(name: str, text: str, reason: str) -> None:
    assert reason in ("stop", "length")
    if reason == "length":
        return
    match name:
        case "schema":
            jsonschema.validate(json.loads(text), _FORM)
        case "object":
            assert isinstance(json.loads(text), dict)
        case "regex":
            assert re.fullmatch(_DIGITS, text)
        case _:
            assert text in _REQUESTS["choice"]["guided_choice"]


def _stranger(route: str, number: int) -> Request:
    """Return a request of any length and temperature, free or under a constraint of its own."""
    choices = random.Random(f"{route} {number}")
    constraint = choices.choice(
        [
            {"ignore_eos": True},
            {"guided_regex": "[a-z ]{5,60}"},
            {"guided_json": _PERSON},
            {"response_format": {"type": "json_object"}},
        ]
    )
    return {
        "prompt": "one two three four " * choices.randint(1, 40),
        "temperature": choices.choice([0, 0.7, 1.3]),
        "max_tokens": choices.randint(5, 50),
        "route": choices.choice(["remote", "local"]),
        **constraint,
    }


async def test_drafts_are_accepted_under_a_constraint(asking: client.Client) -> None:
    """Or the test above would say nothing of verification."""
    answer = await asking.ask(
        {
            "prompt": "1, 2, 3, 1, 2, 3, 1, 2, 3,",
            "guided_regex": "( 1, 2, 3,){12}",
            "temperature": 0,
            "max_tokens": 120,
        }
    )

    assert "stop" == _reason(answer)
    assert " 1, 2, 3," * 12 == client.text_of(answer)
    assert answer["usage"]["num_accepted_tokens"] > 10


async def test_an_answer_that_is_cut_is_a_beginning(asking: client.Client) -> None:
    answer = await asking.ask(
        {"messages": _JOKE, "response_format": _schema(_FORM), "max_tokens": 6, "temperature": 0}
    )

    assert "length" == _reason(answer)
    assert client.text_of(answer).startswith("{")


async def test_an_answer_that_is_complete_at_max_tokens_is_not_cut(asking: client.Client) -> None:
    answer = await asking.ask(
        {"messages": _JOKE, "guided_choice": ["yes", "no"], "max_tokens": 1, "temperature": 0}
        | {"logit_bias": {"10407": 100}}  # "yes" in one token
    )

    assert ("yes", "stop") == (client.text_of(answer), _reason(answer))
    assert [10407] == client.token_ids_of(answer)


async def test_a_stop_string_ends_an_answer_before_its_grammar_does(asking: client.Client) -> None:
    answer = await asking.ask(
        {"messages": _JOKE, "guided_regex": "[a-z]{4}[.][a-z]{4}", "stop": ".", "temperature": 0}
    )

    assert "stop" == _reason(answer)
    assert "." == answer["choices"][0]["stop_reason"]
    assert re.fullmatch("[a-z]{4}", client.text_of(answer))


@pytest.mark.parametrize("route", ["remote", "local"])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_bias_that_leaves_no_token_ends_that_request_alone(
    asking: client.Client, route: str, *, is_streamed: bool
) -> None:
    neighbour = asking.ask(
        {"prompt": "Once", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    )
    request = {
        "messages": _JOKE,
        "guided_regex": "[ab]{3}!",
        "logit_bias": {"17": -100},  # "!" has no other token
        "route": route,
        "temperature": 0,
    }
    if is_streamed:
        stream, beside = await asyncio.gather(asking.stream(request), neighbour)
        answer = stream.ending
    else:
        answer, beside = await asyncio.gather(asking.ask(request), neighbour)

    assert ("failed", "constraint_failed") == (answer["type"], answer["code"])
    assert "logit_bias bans all that the constraint allows" in answer["message"]
    assert 24 == len(client.token_ids_of(beside))


@pytest.mark.slow
async def test_answers_are_the_same_when_blocks_run_out(
    start_stack: conftest.StartStack, packed_int8: None
) -> None:
    """Six answers that together need more than the pool: some give way and are computed anew."""
    running = start_stack(["--kv-memory", "8MiB", "--threads", "2", "--format", "int8"])
    async with client.connected(running.nats_url) as asking:
        requests = [
            {
                "prompt": f"{number}, " * 20,
                "guided_regex": "[0-9]{3}(, [0-9]{3}){60}",
                "max_tokens": 250,
                "seed": number,
                "temperature": 0.8,
            }
            for number in range(6)
        ]
        alone = [await asking.ask(each) for each in requests]
        together = await asyncio.gather(*(asking.ask(each) for each in requests))
        books = await asking.idle_audit()

    assert [client.token_ids_of(each) for each in alone] == [
        client.token_ids_of(each) for each in together
    ]
    assert sum(each["usage"].get("num_preemptions", 0) for each in together) > 0
    assert 0 == books["num_leased"]
    assert 0 == running.stop()


@pytest.mark.slow
async def test_answers_go_on_when_their_decode_worker_is_killed(
    start_stack: conftest.StartStack,
) -> None:
    """Nobody has seen a token: another attempt serves them, and the tokens are the same."""
    variables = {"SLIPSTREAM_FAKE_STEP_MS": "15"}
    arguments = ["--test-mode", "--engine", "fake", "--kv-memory", "1MiB"]
    running = start_stack(arguments, variables)
    request = {"prompt": "x", "guided_regex": "[a-z]{90}!", "max_tokens": 200, "seed": 5}
    async with client.connected(running.nats_url) as asking:
        expected = client.token_ids_of(await asking.ask(request))
        answering = asyncio.create_task(asking.ask(request))
        while not any(each.next_index for each in (await asking.report_of("decode")).held):
            assert not answering.done(), "it was over before the blow"
        running.kill("decode")
        answer = await answering

    assert expected == client.token_ids_of(answer)
    assert ("stop", 2) == (_reason(answer), answer["attempt"])
    assert re.fullmatch("[a-z]{90}!", client.text_of(answer))
    assert 0 == running.stop()
