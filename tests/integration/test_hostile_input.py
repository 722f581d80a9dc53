"""
What an attacker would send: each is refused by name, within a moment, and at no one else's cost.

Over HTTP where that is another way in; the pipeline behind it is real, on the fake engine.
"""

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipstream.services.scheduler.constraints import check_constraint, constraint_of
from slipstream.services.scheduler.schema_limits import MAX_COMBINED_PATTERNS
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.generate import Completion, GenerateRequest

from .http_client import HttpClient, Json, chat_body
from .service_stack import LONG, OVER_HTTP, Client, ServiceStack

pytestmark = pytest.mark.nats

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SOON_S = 10.0  # of a machine that is busy with other things; each takes a tenth of a second
KEYS = "key-of-one one,second-key-of-one one,key-of-two two"


@pytest.fixture
async def stack(start: Any) -> ServiceStack:
    stack: ServiceStack = await start(*OVER_HTTP)
    return stack


@pytest.fixture
async def http(stack: ServiceStack) -> AsyncIterator[HttpClient]:
    client = HttpClient(stack.one("gateway").http_url)
    yield client
    await client.close()


async def test_a_compressed_body_is_refused_and_never_unpacked(http: HttpClient) -> None:
    """A few bytes would become gigabytes."""
    body = json.dumps({"prompt": "x" * 100, "max_tokens": 1}).encode()
    for coding, content in (("gzip", gzip.compress(body)), ("br", body), ("identity, gzip", body)):
        answer = await http.post(TEXT, content, content_encoding=coding)

        error = answer.json()["error"]
        assert (400, "unsupported_media_type") == (answer.status_code, error["code"])
        assert coding in error["message"]
    for path in ("/tokenize", CHAT):
        refused = await http.post(path, gzip.compress(body), content_encoding="gzip")
        assert "unsupported_media_type" == refused.json()["error"]["code"]

    plain = await http.post(TEXT, body, content_encoding="identity")
    assert 200 == plain.status_code, "identity is no compression"


_HUGE_COUNTS: list[tuple[Json, str]] = [
    ({"stop": ["x"] * 100_000}, "stop"),
    ({"stop": "x" * 100_000}, "stop"),
    ({"stop_token_ids": [1] * 100_000}, "stop_token_ids"),
    ({"logit_bias": {str(each): 1 for each in range(50_000)}}, "logit_bias"),
    ({"logprobs": 10**9}, "logprobs"),
    ({"n": 2**31}, "n"),
    ({"best_of": 10**6}, "best_of"),
    ({"max_tokens": 2**63}, "max_tokens"),
    ({"min_tokens": 2**31}, "min_tokens"),
    ({"top_k": 2**40}, "top_k"),
    ({"seed": 2**70}, "seed"),
    ({"stop_token_ids": [2**70]}, "stop_token_ids"),
    ({"guided_json": {"type": "integer", "minimum": 10**300}}, "guided_json"),
    ({"priority": 10**12}, "priority"),
    ({"prompt": ["x"] * 100_000}, "prompt"),
    ({"prompt": [1] * 200_000}, "prompt"),
    ({"guided_choice": ["x"] * 100_000}, "guided_choice"),
    ({"cache_salt": "x" * 10_000}, "cache_salt"),
    ({"deadline_ms": 2**60}, "deadline_ms"),
    ({"num_speculative_tokens": 10**6}, "num_speculative_tokens"),
]


async def test_huge_counts_are_refused_by_name(http: HttpClient) -> None:
    async with asyncio.timeout(3 * SOON_S):
        for fields, name in _HUGE_COUNTS:
            answer = await http.post(TEXT, {"prompt": "Hello", **fields})

            error = answer.json()["error"]
            assert 400 == answer.status_code, (name, error)
            assert name in (error["param"] or "") + error["message"], error
            assert len(error["message"]) < 1000, "what was sent is not sent back"
        chats: list[tuple[Json, str]] = [
            ({"messages": [{"role": "user", "content": "x"}] * 10_000}, "messages"),
            ({"tools": [{"type": "function", "function": {"name": "f"}}] * 5000}, "tools"),
        ]
        for fields, name in chats:
            answer = await http.post(CHAT, {**chat_body(), **fields})
            assert 400 == answer.status_code, answer.text[:200]
            assert name in answer.json()["error"]["message"]
        assert 1 == (await http.complete(max_tokens=1))["usage"]["completion_tokens"]


def _nested(depth: int, opening: str = '{"a":', closing: str = "}") -> str:
    return opening * depth + "1" + closing * depth


async def test_deep_nesting_is_refused_wherever_it_stands(http: HttpClient) -> None:
    async with asyncio.timeout(3 * SOON_S):
        for value in (_nested(100_000), _nested(100_000, "[", "]"), _nested(500)):
            bodies = [
                (TEXT, f'{{"prompt": "x", "guided_json": {value}}}'),
                (TEXT, f'{{"prompt": "x", "response_format": {value}}}'),
                (TEXT, f'{{"prompt": "x", "structured_outputs": {{"json": {value}}}}}'),
                (CHAT, f'{{"messages": [{{"role": "user", "content": {value}}}]}}'),
                (CHAT, f'{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{value}]}}'),
                (TEXT, f'{{"prompt": "x", "store": {value}}}'),
            ]
            for path, body in bodies:
                answer = await http.post(path, body.encode())
                assert 400 == answer.status_code, (path, body[:60], answer.text[:200])
        unknown = await http.post(TEXT, f'{{"prompt":"x","nobody":{_nested(500)}}}'.encode())
        assert unknown.status_code in (200, 400)
        assert 200 == (await http.get("/health")).status_code


def _patterns(num: int) -> list[Json]:
    return [{"type": "string", "pattern": f".*a{each}.*"} for each in range(num)]


def _chain(num: int) -> Json:
    """Patterns that meet through references, each beside the next."""
    steps = [{**each, "$ref": f"#/$defs/n{at + 1}"} for at, each in enumerate(_patterns(num))]
    named: Json = {f"n{at}": step for at, step in enumerate(steps)}
    return {"$defs": {**named, f"n{num}": {"type": "string"}}, "$ref": "#/$defs/n0"}


def _branches(num: int) -> Json:
    schema: Json = {"type": "string"}
    for each in _patterns(num):
        schema = {**each, "anyOf": [schema]}
    return schema


_SCHEMAS: dict[str, Any] = {
    "allOf": {"allOf": _patterns(40)},
    "allOf of properties": {
        "allOf": [{"type": "object", "properties": {"k": each}} for each in _patterns(14)]
    },
    "references": _chain(14),
    "branches": _branches(14),
    "as text": json.dumps({"allOf": _patterns(40)}),
    "many properties": {
        "type": "object",
        "properties": {f"p{each}": {"type": "string"} for each in range(3000)},
    },
    "multiples": {"type": "integer", "multipleOf": 999_999_937},
    "branches of branches": {
        "allOf": [{"anyOf": [{"enum": [f"a{each}"]}, {"minLength": each}]} for each in range(20)]
    },
}


@pytest.mark.parametrize("name", _SCHEMAS)
def test_a_schema_that_blows_up_is_refused_at_once(name: str) -> None:
    """Each further pattern of the first four doubles time and memory; nobody waits for that."""
    began_s = time.monotonic()
    with pytest.raises(InvalidRequestError, match="guided_json"):
        _compile(_SCHEMAS[name])

    assert time.monotonic() - began_s < SOON_S


def _compile(schema: Any) -> None:
    requested = constraint_of(GenerateRequest(prompt="x", guided_json=schema))
    assert requested is not None
    check_constraint(requested)


def test_a_schema_at_the_limit_of_patterns_takes_a_moment() -> None:
    """It may be refused by the library, in bounded time; what combines nothing may have many."""
    hard = [{"type": "string", "pattern": f"(.*a{i}.*|.*b{i}.*){{3}}"} for i in range(20)]
    with pytest.raises(InvalidRequestError, match="limit of 6"):
        _compile({"allOf": hard[: MAX_COMBINED_PATTERNS + 1]})
    began_s = time.monotonic()
    with contextlib.suppress(InvalidRequestError):
        _compile({"allOf": hard[:MAX_COMBINED_PATTERNS]})

    assert time.monotonic() - began_s < SOON_S
    optional = {"anyOf": [{"type": "string", "pattern": "a.*"}, {"type": "null"}], "title": "A"}
    _compile({"type": "object", "properties": {f"k{each}": optional for each in range(20)}})


_REGEXES = [
    "(x+x+)+y",
    "(a|a)*b",
    "(.*a.*){200}",
    "(a{1,1000}){1,1000}",
    "((a?){200}){200}",
    "(" * 20_000 + "a" + ")" * 20_000,
    "[ab]*a[ab]{60}c",
    "(" + "|".join(f"{each}.*{each}" for each in range(5000)) + ")*",
    r"\w{60000}",
    "a" * 60_000,
]


async def test_a_regex_that_blows_up_holds_up_nobody(http: HttpClient) -> None:
    """Served or refused within bounds, off the event loop: others are answered meanwhile."""
    async with asyncio.timeout(3 * SOON_S):
        bodies = [{"prompt": "x", "guided_regex": each, "max_tokens": 3} for each in _REGEXES]
        hostile = [asyncio.create_task(http.post(TEXT, body)) for body in bodies]
        other = await http.complete("Hello", max_tokens=3)
        statuses = [(await each).status_code for each in hostile]

    assert 3 == other["usage"]["completion_tokens"]
    assert set(statuses) <= {200, 400}
    assert 400 in statuses


async def test_no_tenant_finds_what_another_has_asked(start: Any) -> None:
    """By the count of cached tokens, which is what the time to the first token would tell."""
    stack = await start(*OVER_HTTP, gateway={"api_key_list": KEYS})
    http = HttpClient(stack.one("gateway").http_url)

    async def num_cached(key: str, **fields: Any) -> int:
        body = {"prompt": LONG, "max_tokens": 1, "temperature": 0, **fields}
        answer = await http.post(TEXT, body, authorization=f"Bearer {key}")
        assert 200 == answer.status_code, answer.text
        found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    first = await num_cached("key-of-one")
    other = await num_cached("key-of-two")
    pretending = await num_cached("key-of-two", tenant="one", cache_salt="3:one")
    own = await num_cached("key-of-one")
    colleague = await num_cached("second-key-of-one")
    apart = await num_cached("key-of-one", cache_salt="apart")
    await http.close()

    assert [0, 0, 0, 0] == [first, other, pretending, apart]
    assert own > 0
    assert colleague == own, "both keys are the tenant's"


async def test_where_tenants_may_share_they_do(start: Any, client: Client) -> None:
    await start(scheduler={"is_isolating_tenants": False})
    cached = []
    for tenant in ("one", "two"):
        answer = await client.ask(LONG, max_tokens=1, tenant=tenant)
        assert isinstance(answer, Completion)
        cached.append(answer.usage.num_cached_tokens)

    assert 0 == cached[0] < cached[1]


async def test_odd_text_is_served_or_refused_and_breaks_nothing(http: HttpClient) -> None:
    texts = [
        "\u0000",
        "\u202e\u2066abc",
        "e\u0301" * 3,
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\ufeff\uffff",
        "a" + "\u0301" * 200,
    ]
    async with asyncio.timeout(3 * SOON_S):
        for text in texts:
            answer = await http.complete(text, max_tokens=2, stop=[text])
            assert answer["choices"][0]["finish_reason"] in ("length", "stop")
        for lone in (b'"\\ud800"', b'"\\udfff\\ud800"', b'"\xc0\xaf"', b'"\xed\xa0\x80"'):
            refused = await http.post(TEXT, b'{"max_tokens": 1, "prompt": ' + lone + b"}")
            assert 400 == refused.status_code, lone


async def test_a_body_above_the_limit_is_refused_before_it_is_read(start: Any) -> None:
    stack = await start(*OVER_HTTP, gateway={"max_body_bytes": 2048})
    http = HttpClient(stack.one("gateway").http_url)
    answer = await http.post(TEXT, {"prompt": "x" * 4096})
    await http.close()

    assert (413, "message_too_large") == (answer.status_code, answer.json()["error"]["code"])
    assert "--max-body-bytes" in answer.json()["error"]["message"]
