"""The gateway as a process among processes: clients that hang up, and its own end."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.end_to_end import client, stack

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_ARGUMENTS = ["--test-mode", "--engine", "fake", "--kv-memory", "1MiB"]
# Two seats, steps of 20 ms: a request can be met while it waits, and while it is decoded.
_VARIABLES = {
    "SLIPSTREAM_SEATS": "1",
    "SLIPSTREAM_NUM_RESERVED_SEATS": "0",
    "SLIPSTREAM_FAKE_STEP_MS": "20",
    "SLIPSTREAM_TOKEN_BUDGET": "16",
    "SLIPSTREAM_ROUTE": "remote",
}
_FREE_S = 1.0
_LONG = {"prompt": "Hello", "max_tokens": 3000, "ignore_eos": True}
_GONE_S = 12.0  # of probes that all failed, by which a dead gateway's requests are known


@pytest.fixture(scope="module")
def slow_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Stack]:
    with stack.running(_ARGUMENTS, tmp_path_factory.mktemp("gateway"), _VARIABLES) as started:
        yield started


@pytest.fixture
async def asking(slow_stack: stack.Stack) -> AsyncIterator[client.Client]:
    async with client.connected(slow_stack.nats_url) as found:
        yield found


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("phase", ["decoding", "prefilling"])
async def test_who_hangs_up_holds_no_block_a_second_later(
    slow_stack: stack.Stack, asking: client.Client, phase: str, *, streamed: bool
) -> None:
    await _until_free(asking, 10)
    body: dict[str, Any] = {**_LONG, "stream": streamed}
    if phase == "prefilling":
        # Chunks of 16 tokens: it takes seconds.
        body |= {"prompt": "word " * 500}

    connection = _send(slow_stack, body)
    await _until_held(asking)
    await asyncio.sleep(0.2)
    connection.close()

    await _until_free(asking, _FREE_S)


@pytest.mark.parametrize("streamed", [False, True])
async def test_who_hangs_up_while_it_waits_is_never_served(
    slow_stack: stack.Stack, asking: client.Client, *, streamed: bool
) -> None:
    """Behind it is one that gets its turn as if nobody had been before it."""
    await _until_free(asking, 10)
    running = _send(slow_stack, {**_LONG, "stream": True})
    await _until_held(asking)
    waiting = _send(slow_stack, {**_LONG, "stream": streamed})
    await asyncio.sleep(0.3)
    waiting.close()
    await asyncio.sleep(0.2)
    running.close()

    async with httpx.AsyncClient(base_url=slow_stack.http_url, timeout=_FREE_S + 5) as http:
        began = time.monotonic()
        answer = await http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})

    assert 200 == answer.status_code
    assert time.monotonic() - began < 2 * _FREE_S
    await _until_free(asking, _FREE_S)


async def test_requests_of_a_gateway_that_was_killed_end_too(
    slow_stack: stack.Stack, asking: client.Client
) -> None:
    await _until_free(asking, 10)
    connection = _send(slow_stack, {**_LONG, "stream": True})
    await _until_held(asking)

    old_pid = slow_stack.kill("gateway")
    await asyncio.to_thread(slow_stack.wait_restarted, "gateway", old_pid)

    await _until_free(asking, _GONE_S)
    connection.close()
    async with httpx.AsyncClient(base_url=slow_stack.http_url, timeout=10) as http:
        answer = await http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
    assert 200 == answer.status_code


def _send(running: stack.Stack, body: dict[str, Any]) -> socket.socket:
    host, _, port = running.http_url.removeprefix("http://").partition(":")
    content = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)), timeout=5)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


async def _until_held(asking: client.Client) -> None:
    async with asyncio.timeout(10):
        while not await _num_held(asking):
            await asyncio.sleep(0.02)


async def _until_free(asking: client.Client, within_s: float) -> None:
    """Return when nobody holds a block any more."""
    async with asyncio.timeout(within_s):
        while await _num_held(asking):
            await asyncio.sleep(0.02)


async def _num_held(asking: client.Client) -> int:
    audit = await asking.audit()
    return int(audit["num_blocks"] - audit["num_free"] - audit["num_cached"])
