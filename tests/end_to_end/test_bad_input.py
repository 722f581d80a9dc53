"""Bad input gets a clear answer, at once, in its own encoding, and leaves nothing behind."""

import math
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from slipstream.services.cli.connection import operator_access
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import GENERATE, GENERATE_MODEL
from slipstream.shared.errors import MessageTooLargeError

from . import client, stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(120)]

_AIM_S = 1.0  # ten times the aim: other tests may run beside this one
_CONTEXT = 8192
_VOCABULARY = 49_152
_MIB = 1024 * 1024
_CHAT = [{"role": "user", "content": "Hello"}]

# Name: body, code, field, limit, and what the message says beside them.
Case = tuple[Mapping[str, Any] | bytes, str, str | None, float | None, str]
_CASES: dict[str, Case] = {
    "nothing": (b"", "invalid_request", None, None, "empty"),
    "no JSON": (b"not json", "invalid_request", None, None, "malformed JSON"),
    "half a JSON object": (b'{"prompt": "Hel', "invalid_request", None, None, "malformed JSON"),
    "half a msgpack map": (b"\x81\xa6prom", "invalid_request", None, None, "malformed msgpack"),
    "a JSON list": (b"[1, 2]", "invalid_request", None, None, "object"),
    "a number for the prompt": ({"prompt": 7}, "invalid_request", "prompt", None, "str"),
    "no prompt": ({"max_tokens": 4}, "invalid_request", "prompt", None, "is missing"),
    "an empty prompt": ({"prompt": ""}, "invalid_request", "prompt", None, "is empty"),
    "no messages": ({"messages": []}, "invalid_request", "messages", None, "is empty"),
    "no token ids": (
        {"prompt_token_ids": []},
        "invalid_request",
        "prompt_token_ids",
        None,
        "is empty",
    ),
    "prompt and messages": (
        {"prompt": "Hello", "messages": _CHAT},
        "invalid_request",
        "messages",
        None,
        "prompt is given too",
    ),
    "another model": (
        {"prompt": "Hello", "model": "gpt-9"},
        "model_not_found",
        "model",
        None,
        "'smollm2-135m'",
    ),
    "an id above the vocabulary": (
        {"prompt_token_ids": [1, _VOCABULARY]},
        "invalid_request",
        "prompt_token_ids",
        _VOCABULARY - 1,
        "position 1",
    ),
    "a negative id": (
        {"prompt_token_ids": [-1]},
        "invalid_request",
        "prompt_token_ids",
        None,
        "negative",
    ),
    "a prompt longer than the context": (
        {"prompt": "word " * (_CONTEXT + 8)},
        "context_length_exceeded",
        "prompt",
        _CONTEXT - 1,
        f"the context of {_CONTEXT} tokens",
    ),
    "max_tokens below zero": (
        {"prompt": "Hello", "max_tokens": -1},
        "invalid_request",
        "max_tokens",
        1,
        "-1 is out of range",
    ),
    "max_tokens of zero": (
        {"prompt": "Hello", "max_tokens": 0},
        "invalid_request",
        "max_tokens",
        1,
        "0 is out of range",
    ),
    "huge max_tokens": (
        {"prompt": "Hello", "max_tokens": 10**9},
        "invalid_request",
        "max_tokens",
        _CONTEXT,
        "out of range",
    ),
    "max_tokens above 64 bits": (
        {"prompt": "Hello", "max_tokens": 10**40},
        "invalid_request",
        "max_tokens",
        None,
        "",
    ),
    "a temperature that is NaN, in JSON": (
        b'{"prompt": "Hello", "temperature": NaN}',
        "invalid_request",
        "temperature",
        2,
        "nan is out of range",
    ),
    "a temperature that is NaN, in msgpack": (
        msgspec.msgpack.encode({"prompt": "Hello", "temperature": math.nan}),
        "invalid_request",
        "temperature",
        2,
        "nan is out of range",
    ),
    "an infinite temperature": (
        b'{"prompt": "Hello", "temperature": Infinity}',
        "invalid_request",
        "temperature",
        2,
        "inf is out of range",
    ),
    "a hot temperature": (
        {"prompt": "Hello", "temperature": 2.5},
        "invalid_request",
        "temperature",
        2,
        "2.5 is out of range",
    ),
    "an unknown route": (
        {"prompt": "Hello", "route": "scenic"},
        "invalid_request",
        "route",
        None,
        "scenic",
    ),
    "what is not served": (
        {"prompt": "Hello", "n": 2, "best_of": 4},
        "invalid_request",
        "best_of",
        2,
        "not supported",
    ),
    "a body of five megabytes": (
        {"prompt": "a" * 5 * _MIB},
        "message_too_large",
        None,
        _MIB,
        f"{5 * _MIB + 13} bytes is above the limit of {_MIB} bytes",
    ),
}


@pytest.mark.parametrize("name", _CASES)
async def test_bad_input_is_refused_by_name_at_once(real_client: client.Client, name: str) -> None:
    body, code, field, limit, text = _CASES[name]
    payload = client.encode(body)
    began_s = time.monotonic()

    answer = await real_client.connection.request(GENERATE.subject(), payload, timeout=10)

    took_s = time.monotonic() - began_s
    failed = client.decode(answer.data)
    assert "failed" == failed["type"], failed
    assert code == failed["code"]
    assert field == failed.get("field"), failed
    if limit is not None:
        assert limit == failed["limit"], failed
    assert text in failed["message"]
    assert (field or "") in failed["message"]
    assert took_s < _AIM_S
    if payload:
        assert client.encoding_of(payload) == client.encoding_of(answer.data)


async def test_a_stream_of_bad_input_holds_one_message(real_client: client.Client) -> None:
    found = await real_client.stream({"prompt": "Hello", "max_tokens": -1})

    assert ["failed"] == [each["type"] for each in found.messages]
    assert "max_tokens" == found.ending["field"]


async def test_a_model_in_the_subject_that_is_not_served_is_refused(
    real_client: client.Client,
) -> None:
    subject = GENERATE_MODEL.subject(model="gpt-9")

    failed = await real_client.ask({"prompt": "Hello"}, subject=subject)

    assert ("failed", "model_not_found", "model") == (
        failed["type"],
        failed["code"],
        failed["field"],
    )


async def test_what_the_server_would_not_take_is_refused_before_it_is_published(
    our_bus: NatsBus,
) -> None:
    payload = b"x" * (our_bus.max_payload + 1)

    with pytest.raises(MessageTooLargeError, match=rf"{len(payload)} bytes is above the limit"):
        await our_bus.request(GENERATE.subject(), payload, timeout_s=10)

    # The connection lives: a server that had seen it would have closed it.
    await our_bus.flush()
    assert our_bus.client.is_connected


async def test_bad_input_leaves_nothing_behind(real_client: client.Client) -> None:
    for body, *_ in _CASES.values():
        failed = await real_client.ask(body)
        assert "failed" == failed["type"]

    books = await real_client.idle_audit()
    assert [] == books.get("problems", [])
    assert (0, 0, 0) == (books["num_leases"], books["num_leased"], books["num_committed"])
    answer = await real_client.ask({"prompt": "Hello", "max_tokens": 4})
    assert 4 == len(client.token_ids_of(answer))


@pytest.fixture
async def our_bus(real_stack: stack.Stack) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(real_stack.nats_url, "test", operator_access(real_stack.nats_url))
    yield bus
    await bus.close()
