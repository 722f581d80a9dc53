"""The Python client through the gateway: what it says over NATS it says over HTTP too."""

import time
from collections.abc import Iterator

import pytest

from slipstream.client import Client, HttpStatusError

from . import conftest, stack

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_ARGUMENTS = ["--test-mode", "--engine", "fake", "--kv-memory", "1MiB"]
_SLOW = {"SLIPSTREAM_FAKE_STEP_MS": "25"}
_PROMPT = "Once upon a time"


@pytest.fixture
def running(start_stack: conftest.StartStack) -> stack.Stack:
    return start_stack(_ARGUMENTS, _SLOW)


@pytest.fixture
def clients(running: stack.Stack) -> Iterator[tuple[Client, Client]]:
    """One over NATS, one over HTTP: of a gateway that keeps its port when it is started again."""
    url = running.http_url
    with Client(running.nats_url, timeout_s=60) as direct, Client(url, timeout_s=60) as gateway:
        yield direct, gateway


def test_both_ways_lead_to_the_same_answer(clients: tuple[Client, Client]) -> None:
    direct, gateway = clients
    turns = [{"role": "user", "content": "hi"}]
    for seed in range(3):
        asked = {"max_tokens": 30, "temperature": 1.0, "seed": seed}
        one, other = direct.chat(turns, **asked), gateway.chat(turns, **asked)

        assert one.text == other.text
        assert one.finish_reason == other.finish_reason
        assert one.usage.num_output_tokens == other.usage.num_output_tokens
        assert one.route == other.route
        assert None not in (one.trace_id, other.trace_id)
        assert len(one.request_id) == len(other.request_id)
        assert 0 < other.timings.ttft_ms <= other.timings.total_ms
        assert seed == other.seed


@pytest.mark.slow
def test_a_killed_decode_worker_changes_no_character(
    running: stack.Stack, clients: tuple[Client, Client]
) -> None:
    direct, gateway = clients
    expected = direct.generate(_PROMPT, max_tokens=90, ignore_eos=True, temperature=1.0, seed=5)
    with gateway.stream(_PROMPT, max_tokens=90, ignore_eos=True, temperature=1.0, seed=5) as stream:
        pieces = [next(stream) for _ in range(10)]
        running.kill("decode")
        pieces += stream

    assert expected.text == "".join(pieces) == stream.answer.text
    assert 0 < stream.num_retries


@pytest.mark.slow
def test_a_killed_gateway_changes_no_character(
    running: stack.Stack, clients: tuple[Client, Client]
) -> None:
    direct, gateway = clients
    expected = direct.generate(_PROMPT, max_tokens=90, ignore_eos=True, temperature=1.0, seed=5)
    with gateway.stream(_PROMPT, max_tokens=90, ignore_eos=True, temperature=1.0, seed=5) as stream:
        pieces = [next(stream) for _ in range(10)]
        running.kill("gateway")
        pieces += stream

    assert expected.text == "".join(pieces) == stream.answer.text
    assert 0 < stream.num_retries


def test_leaving_a_stream_cancels_it(running: stack.Stack, clients: tuple[Client, Client]) -> None:
    _, gateway = clients
    with gateway.stream(_PROMPT, max_tokens=2000, ignore_eos=True) as stream:
        next(stream)
    left_s = time.monotonic()

    assert stack.wait_until(lambda: _was_cancelled(running), 1.0 + left_s - time.monotonic())


def test_a_field_that_is_out_of_range_is_named(clients: tuple[Client, Client]) -> None:
    _, gateway = clients
    with pytest.raises(HttpStatusError) as raised:
        gateway.generate("Hello", top_p=7.0)

    assert (400, "invalid_request", "top_p") == (
        raised.value.status,
        raised.value.code,
        raised.value.field,
    )


def _was_cancelled(running: stack.Stack) -> bool:
    return any(line.get("finish_reason") == "abort" for line in running.log)
