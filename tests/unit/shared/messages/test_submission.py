"""Keys of results, and which submissions are the same."""

import json
import subprocess

import pytest

from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.submission import (
    body_digest,
    identify,
    is_result_key,
    is_same,
    key_of,
    result_key,
    sequence_key,
)


def payload(**fields: object) -> bytes:
    return json.dumps({"prompt": "x", **fields}).encode()


def test_a_key_can_be_made_in_a_shell() -> None:
    """As the documentation says it."""
    command = "printf '0::order-17' | sha256sum | cut -c1-32"
    digits = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)

    assert f"key-{digits.stdout.strip()}" == result_key("order-17")


def test_tenants_never_meet_in_a_key() -> None:
    names = [("a", ""), ("a", "b"), ("b:a", ""), ("a", "1:b"), (":a", "b"), ("b:1:a", "")]

    assert len(names) == len({result_key(key, tenant) for key, tenant in names})


def test_without_a_key_a_submission_is_known_by_its_number() -> None:
    found = identify(payload(), 7)

    assert ("seq-7", "seq-7") == (found.key, found.own_key)


def test_with_a_key_it_is_known_by_that_and_keeps_its_number() -> None:
    found = identify(payload(request_key="k", tenant="t", n=3), 7)

    assert (result_key("k", "t"), "seq-7", 3) == (found.key, found.own_key, found.num_choices)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b'{"prompt": 1}',
        payload(request_key=""),
        payload(request_key="x" * 129),
        payload(seed=10**40),
    ],
)
def test_what_will_be_refused_is_known_by_its_number(bad: bytes) -> None:
    found = identify(bad, 7)

    assert "seq-7" == found.key
    assert found.body_digest


def test_a_body_is_the_same_however_it_is_written() -> None:
    same = [
        payload(request_key="k", max_tokens=3),
        b'{"max_tokens": 3,   "request_key": "k", "prompt": "x", "stream": false}',
        payload(request_key="k", max_tokens=3, client_request_id="mine"),
        encode(GenerateRequest(prompt="x", max_tokens=3, request_key="k")),
    ]
    others = [payload(request_key="k", max_tokens=4), payload(request_key="k")]

    assert 1 == len({identify(each, 1).body_digest for each in same})
    assert 3 == len({identify(each, 1).body_digest for each in [same[0], *others]})


def test_publisher_and_scheduler_agree() -> None:
    request = GenerateRequest(prompt="x", request_key="k", tenant="t")
    found = identify(encode(request, "json"), 9)

    assert (key_of(request, 9), body_digest(request)) == (found.key, found.body_digest)


@pytest.mark.parametrize("key", [sequence_key(3), result_key("k"), result_key("", "t")])
def test_keys_are_keys(key: str) -> None:
    assert is_result_key(key)


@pytest.mark.parametrize("text", ["", "seq-", "seq-1 ", "seq-*", "key-1", "a", "seq-1.b", ">"])
def test_nothing_else_is_a_key(text: str) -> None:
    assert not is_result_key(text)


def test_a_result_without_a_digest_is_whoevers_asks() -> None:
    assert is_same(None, "a")
    assert is_same("a", "a")
    assert not is_same("b", "a")
