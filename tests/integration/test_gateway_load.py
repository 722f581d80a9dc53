"""What many streams cost a gateway: messages, writes and frames' ways, not times."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipstream.services.gateway.exchange import Exchange
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import last_token
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.codec import decode_batch, is_array

from .http_client import HttpClient
from .service_stack import OVER_HTTP, ServiceStack, until

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]

_NUM_STREAMS, _NUM_TOKENS = 16, 60
_PATH = "/v1/completions"
_LETTER = 64  # of the fake engine's tokens one that is a character by itself
_FIRST_BYTE_S = 0.03  # ten times the bar


@pytest.fixture
async def stack(start: Any) -> ServiceStack:
    engine = FakeEngineConfig(step_ms=20.0, row_us=0.0, context_token_ns=0.0)
    found: ServiceStack = await start(*OVER_HTTP, every={"fake": engine})
    return found


@pytest.fixture
async def http(stack: ServiceStack) -> AsyncIterator[HttpClient]:
    found = HttpClient(stack.one("gateway").http_url)
    yield found
    await found.http.aclose()


async def test_a_step_of_many_streams_is_one_message_and_a_write_each(
    stack: ServiceStack, http: HttpClient, nats_bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = stack.one("gateway")._gateway.room
    sizes: list[int] = []
    num_single = 0

    async def watch(message: Incoming) -> None:
        nonlocal num_single
        if last_token(message.subject) == last_token(room.batch_inbox):
            sizes.append(len(decode_batch(message.payload)))
        else:
            num_single += is_array(message.payload)

    writes: Counter[str] = Counter()
    send = Exchange.send_events

    async def count(exchange: Exchange, events: bytes, *, is_last: bool = False) -> None:
        writes[exchange.request_id] += 1
        await send(exchange, events, is_last=is_last)

    monkeypatch.setattr(Exchange, "send_events", count)
    await nats_bus.subscribe(f"{room._inbox}.*", watch)
    await nats_bus.flush()

    found = await asyncio.gather(*(http.chunks(_PATH, _body(seed)) for seed in range(_NUM_STREAMS)))

    await until(lambda: sum(sizes) >= _NUM_STREAMS * _NUM_TOKENS)
    assert 0 == num_single
    # Of streams that began together; who came a step later has its last tokens alone.
    assert len(sizes) < 3 * _NUM_TOKENS
    assert max(sizes) == _NUM_STREAMS
    assert {_NUM_TOKENS} == {sum(len(_text_of(chunk)) for chunk in chunks) for chunks in found}
    # A write a token at most, and the end.
    assert _NUM_STREAMS == len(writes)
    assert max(writes.values()) <= _NUM_TOKENS + 1


async def test_half_of_the_first_bytes_leave_at_once(stack: ServiceStack, http: HttpClient) -> None:
    metrics = stack.one("gateway")._gateway.metrics
    seen: list[float] = []
    record = metrics.first_frame
    metrics.first_frame = lambda seconds: (seen.append(seconds), record(seconds))

    for _ in range(2):
        await asyncio.gather(*(http.chunks(_PATH, _body(seed)) for seed in range(_NUM_STREAMS)))

    assert 2 * _NUM_STREAMS == len(seen)
    assert all(seconds > 0 for seconds in seen)
    assert sorted(seen)[_NUM_STREAMS] < _FIRST_BYTE_S


def _body(seed: int) -> dict[str, Any]:
    return {
        "prompt": "Hello",
        "temperature": 0,
        "seed": seed,
        "ignore_eos": True,
        "max_tokens": _NUM_TOKENS,
        "logit_bias": {str(_LETTER): 100},
        "speculation": "off",
    }


def _text_of(chunk: dict[str, Any]) -> str:
    return "".join(choice["text"] for choice in chunk["choices"])
