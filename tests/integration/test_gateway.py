"""The HTTP API over the whole pipeline on the fake engine: shapes, streams, errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipstream.shared.messages.generate import Completion

from .http_client import HttpClient, Json, chat_body
from .service_stack import OVER_HTTP, Client

pytestmark = pytest.mark.nats

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


_REFUSED: list[tuple[str, Json, int, str, str]] = [
    (TEXT, {"temperature": 9}, 400, "invalid_request", "temperature"),
    (TEXT, {"temperature": "hot"}, 400, "invalid_request", "temperature"),
    (TEXT, {"prompt": None}, 400, "invalid_request", "prompt"),
    (TEXT, {"prompt": []}, 400, "invalid_request", "prompt"),
    (TEXT, {"prompt": ["a", 1]}, 400, "invalid_request", "prompt"),
    (TEXT, {"prompt": ["x"] * 1000}, 400, "invalid_request", "prompt"),
    (TEXT, {"prompt": "x" * 9000}, 400, "context_length_exceeded", "prompt"),
    (TEXT, {"suffix": "end"}, 400, "invalid_request", "suffix"),
    (TEXT, {"n": 10**9}, 400, "invalid_request", "n"),
    (TEXT, {"model": "gpt-9"}, 404, "model_not_found", "model"),
    (TEXT, {"deadline_ms": -1}, 400, "invalid_request", "deadline_ms"),
    (CHAT, {"messages": []}, 400, "invalid_request", "messages"),
    (CHAT, {"audio": {}}, 400, "invalid_request", "audio"),
    (CHAT, {"functions": [{"name": "f"}]}, 400, "invalid_request", "functions"),
    (CHAT, {"prediction": {"type": "content"}}, 400, "invalid_request", "prediction"),
    (CHAT, {"response_format": {"type": "xml"}}, 400, "invalid_request", "response_format"),
    (CHAT, {"tools": [{"type": "function"}]}, 400, "invalid_request", "tools[0].function"),
]


@pytest.fixture
async def http(start: Any) -> AsyncIterator[HttpClient]:
    stack = await start(*OVER_HTTP)
    client = HttpClient(stack.one("gateway").http_url)
    yield client
    await client.close()


async def test_the_text_is_that_of_a_nats_client(http: HttpClient, client: Client) -> None:
    asked = await client.ask("Hello", max_tokens=12, seed=7)
    assert isinstance(asked, Completion)

    answered = await http.complete("Hello", max_tokens=12, seed=7)

    (choice,) = answered["choices"]
    assert (asked.choices[0].text, asked.choices[0].finish_reason, 7) == (
        choice["text"],
        choice["finish_reason"],
        choice["seed"],
    )
    assert ("text_completion", "fake", 7) == (
        answered["object"],
        answered["model"],
        answered["seed"],
    )
    assert (5, 12, 17) == tuple(
        answered["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_stream_is_the_plain_answer_in_pieces(http: HttpClient, path: str) -> None:
    """With its usage in one last chunk without choices, and the role with the first words."""
    body = _body(path, max_tokens=9, seed=3, stream_options={"include_usage": True})
    plain = (await http.post(path, body)).json()

    *chunks, last = await http.chunks(path, body)

    assert ([], plain["usage"]) == (last["choices"], last["usage"])
    assert [None] * len(chunks) == [chunk["usage"] for chunk in chunks]
    assert 1 == len({(each["id"], each["created"], each["model"]) for each in [*chunks, last]})
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices]
    assert [*[None] * (len(choices) - 1), plain["choices"][0]["finish_reason"]] == reasons
    if path == TEXT:
        assert plain["choices"][0]["text"] == "".join(choice["text"] for choice in choices)
        return
    deltas = [choice["delta"] for choice in choices]
    assert ["assistant"] == [delta["role"] for delta in deltas if "role" in delta]
    assert "assistant" == deltas[0]["role"]
    assert deltas[0]["content"], "a role alone would pass for a first token"
    said = "".join(delta.get("content", "") for delta in deltas)
    assert plain["choices"][0]["message"]["content"] == said


async def test_without_being_asked_a_stream_says_nothing_of_usage(http: HttpClient) -> None:
    chunks = await http.chunks(TEXT, _body(TEXT, max_tokens=3))

    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_usage_in_every_chunk_counts_up(http: HttpClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await http.chunks(TEXT, _body(TEXT, max_tokens=6, stream_options=options))

    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert sorted(counts) == counts
    assert (6, {5}) == (counts[-1], {chunk["usage"]["prompt_tokens"] for chunk in chunks})


async def test_choices_of_several_prompts_stand_in_their_order(http: HttpClient) -> None:
    prompts = ["Hello", "Rivers", "Wind"]
    alone = [await http.complete(prompt, max_tokens=5, seed=1) for prompt in prompts]

    together = (
        await http.post(
            TEXT, {"prompt": prompts, "max_tokens": 5, "seed": 1, "n": 2, "temperature": 0}
        )
    ).json()

    texts = [choice["text"] for choice in together["choices"]]
    assert [0, 1, 2, 3, 4, 5] == [choice["index"] for choice in together["choices"]]
    # Greedy choices are one and the same.
    assert [each["choices"][0]["text"] for each in alone for _ in range(2)] == texts
    assert (30, 5 + 6 + 4) == (
        together["usage"]["completion_tokens"],
        together["usage"]["prompt_tokens"],
    )


async def test_streamed_choices_are_the_plain_ones(http: HttpClient) -> None:
    body = {"prompt": ["Hello", "Wind"], "max_tokens": 6, "seed": 5, "n": 3, "temperature": 1}
    plain = (await http.post(TEXT, body)).json()

    chunks = await http.chunks(TEXT, body)

    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert {each["index"]: each["text"] for each in plain["choices"]} == texts


async def test_token_ids_are_a_prompt(http: HttpClient) -> None:
    ids = (await http.post("/tokenize", {"prompt": "Hello"})).json()["tokens"]
    of_text = await http.complete("Hello", max_tokens=4)

    of_ids = await http.post(TEXT, {"prompt": ids, "max_tokens": 4, "temperature": 0})
    of_lists = await http.post(TEXT, {"prompt": [ids, ids], "max_tokens": 4, "temperature": 0})

    text = of_text["choices"][0]["text"]
    assert [text] == [choice["text"] for choice in of_ids.json()["choices"]]
    assert [text, text] == [choice["text"] for choice in of_lists.json()["choices"]]


async def test_a_prompt_is_echoed_plain_and_streamed(http: HttpClient) -> None:
    plain = await http.complete("Hello", max_tokens=3, echo=True)
    chunks = await http.chunks(TEXT, _body(TEXT, max_tokens=3, echo=True))

    text = plain["choices"][0]["text"]
    assert text.startswith("Hello")
    assert text == "".join(chunk["choices"][0]["text"] for chunk in chunks)


@pytest.mark.parametrize("streamed", [False, True])
async def test_logprobs_of_a_chat_have_an_entry_a_token(
    http: HttpClient, *, streamed: bool
) -> None:
    body = chat_body(max_tokens=5, logprobs=True, top_logprobs=2)
    if streamed:
        chunks = await http.chunks(CHAT, body)
        found = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        entries = [entry for each in found if each is not None for entry in each["content"]]
        said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    else:
        (choice,) = (await http.chat(max_tokens=5, logprobs=True, top_logprobs=2))["choices"]
        entries, said = choice["logprobs"]["content"], choice["message"]["content"]

    assert 5 == len(entries)
    assert said == bytes(byte for each in entries for byte in each["bytes"]).decode(
        errors="replace"
    )
    assert all(each["logprob"] <= 0 and 2 == len(each["top_logprobs"]) for each in entries)
    # Greedy: what came is what was most likely.
    assert all(each["token"] == each["top_logprobs"][0]["token"] for each in entries)


async def test_logprobs_of_a_completion_are_columns(http: HttpClient) -> None:
    (choice,) = (await http.complete("Hello", max_tokens=4, logprobs=2, echo=True))["choices"]

    found = choice["logprobs"]
    assert {5 + 4} == {len(column) for column in found.values()}
    assert ["H", "e", "l", "l", "o"] == found["tokens"][:5]
    assert [0, 1, 2, 3, 4, 5] == found["text_offset"][:6]
    assert (None, None) == (found["token_logprobs"][0], found["top_logprobs"][0])
    pairs = list(zip(found["tokens"], found["top_logprobs"], strict=True))[1:]
    assert all(token in top for token, top in pairs)


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_can_not_be_served_is_refused_by_name(
    http: HttpClient, *, streamed: bool
) -> None:
    """Streamed as plain: before the first event there is still a status."""
    for path, changes, status, code, param in _REFUSED:
        answer = await http.post(path, {**_body(path), **changes, "stream": streamed})

        error = answer.json()["error"]
        assert (status, code, param) == (answer.status_code, error["code"], error["param"])
        assert "invalid_request_error" == error["type"]
        assert param.partition("[")[0] in error["message"]


async def test_what_is_no_request_is_told_so(http: HttpClient) -> None:
    broken = (b'{"prompt": "a", "n": 4,,}', b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}')
    for body in (b"", b"{", b"[]", b"null", b"[" * 100_000, *broken):
        answer = await http.post(TEXT, body)

        assert 400 == answer.status_code, body[:40]
        assert {"message", "type", "param", "code"} == set(answer.json()["error"])
    wrong_kind = await http.post(TEXT, _body(TEXT), content_type="text/xml")
    assert 400 == wrong_kind.status_code


async def test_what_is_not_there_is_not_found_in_json(http: HttpClient) -> None:
    for path in ("/v1/responses", "/v1/embeddings", "/nothing", "/v1/models/no", "/health/"):
        answer = await http.get(path)

        assert 404 == answer.status_code, path
        assert "invalid_request_error" == answer.json()["error"]["type"]


async def test_a_wrong_method_is_told_the_right_one(http: HttpClient) -> None:
    answer = await http.get(CHAT)

    assert (405, "POST") == (answer.status_code, answer.headers["allow"])
    assert "method_not_allowed" == answer.json()["error"]["code"]


async def test_every_field_of_known_clients_is_taken(http: HttpClient) -> None:
    """Nulls, and what asks for nothing else than what is done anyway."""
    body = chat_body(
        [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}],  # type: ignore[arg-type] # parts
        max_tokens=2,
        max_completion_tokens=4,
        logprobs=None,
        top_logprobs=None,
        stop=None,
        n=1,
        user="somebody",
        top_k=40,
        min_p=0.0,
        repetition_penalty=1.0,
        ignore_eos=True,
        min_tokens=1,
        stream_options=None,
        response_format={"type": "text"},
        modalities=["text"],
        store=False,
        service_tier="auto",
        metadata={"a": "b"},
        parallel_tool_calls=True,
        tools=None,
        tool_choice="none",
        logit_bias={},
        something_new={"x": 1},
    )
    answer = await http.post(CHAT, body)

    assert 200 == answer.status_code, answer.text
    assert 4 == answer.json()["usage"]["completion_tokens"], "max_completion_tokens wins"


async def test_a_request_keeps_its_name(http: HttpClient) -> None:
    answer = await http.post(TEXT, _body(TEXT, max_tokens=1), x_request_id="mine-1")
    unnamed = await http.get("/health")

    assert "mine-1" == answer.headers["x-request-id"]
    assert unnamed.headers["x-request-id"].startswith("req_")


async def test_models_tokens_health_and_metrics(http: HttpClient) -> None:
    models = (await http.get("/v1/models")).json()
    tokens = (await http.post("/tokenize", {"prompt": "Hello"})).json()
    text = (await http.post("/detokenize", {"tokens": tokens["tokens"]})).json()
    bad = await http.post("/detokenize", {"tokens": [10**6]})
    await http.complete(max_tokens=1)
    sample = 'slipstream_http_requests_total{endpoint="/v1/completions",status="200"} 1.0'
    async with asyncio.timeout(5):
        # It is counted when it is over, a moment after the client has it.
        while sample not in (await http.get("/metrics")).text.splitlines():
            await asyncio.sleep(0.01)

    assert ("list", ["fake"]) == (models["object"], [each["id"] for each in models["data"]])
    assert models["data"][0] == (await http.get("/v1/models/fake")).json()
    assert (5, "Hello") == (tokens["count"], text["prompt"])
    assert (400, "tokens[0]") == (bad.status_code, bad.json()["error"]["param"])
    assert 200 == (await http.get("/health")).status_code
    assert 200 == (await http.get("/ready")).status_code


async def test_every_path_is_described(http: HttpClient) -> None:
    description = (await http.get("/openapi.json")).json()

    assert {CHAT, TEXT, "/v1/models", "/tokenize", "/ready"} <= set(description["paths"])
    names = json.dumps(description).split('"#/components/schemas/')[1:]
    used = {name.partition('"')[0] for name in names}
    assert used <= set(description["components"]["schemas"])


def _body(path: str, **fields: Any) -> Json:
    if path == CHAT:
        return chat_body(**fields)
    return {"prompt": "Hello", "temperature": 0, **fields}
