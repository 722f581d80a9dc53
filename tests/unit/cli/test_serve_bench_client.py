"""The load generator against a scripted service on the in-memory bus."""

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest

from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.bus.subjects import CANCEL, GENERATE, last_token
from slipstream.shared.ids import RequestId
from slipstream.shared.measure.load.arrivals import Arrivals, ScheduledArrivals, StreamArrivals
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.requests import PlannedRequest
from slipstream.shared.messages.codec import decode_request, decoder_of, encode, encode_batch
from slipstream.shared.messages.common import Accepted, Failed, Timings, Usage
from slipstream.shared.messages.generate import (
    Cancel,
    Cancelled,
    Finished,
    GenerateRequest,
    TokenFrame,
)
from slipstream.shared.messages.packed import PackedInts


class Service:
    """Answers each request with a token at a time, or as a script says."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.asked: list[GenerateRequest] = []
        self.times_s: list[float] = []
        self.cancelled: list[RequestId] = []
        self.gap_s = 0.0
        self.failure: Failed | None = None
        self.is_silent = False
        self.is_batching = False
        self._replies: dict[RequestId, str] = {}

    async def start(self) -> None:
        await self.bus.subscribe(GENERATE.subject(), self._generate)
        await self.bus.subscribe(CANCEL.wildcard, self._cancel)

    async def _generate(self, incoming: Incoming) -> None:
        request = decode_request(incoming.payload)
        self.asked.append(request)
        self.times_s.append(time.perf_counter())
        request_id = RequestId(f"r{len(self.asked)}")
        self._replies[request_id] = incoming.reply
        if self.failure is not None:
            await self.bus.publish(incoming.reply, encode(self.failure, "msgpack"))
            return
        await self.bus.publish(incoming.reply, encode(Accepted(request_id=request_id)))
        if self.is_silent:
            return
        for index in range(request.max_tokens or 0):
            await asyncio.sleep(self.gap_s)
            await self._send(incoming.reply, request, encode(self._frame(request_id, index)))
        # What another attempt says again, and a keep-alive: neither is a token.
        await self.bus.publish(incoming.reply, encode(self._frame(request_id, 0)))
        await self.bus.publish(incoming.reply, encode(self._frame(request_id, 0, 0)))
        await self._finish(request_id, request.max_tokens or 0)

    async def _send(self, reply: str, request: GenerateRequest, frame: bytes) -> None:
        if not self.is_batching:
            await self.bus.publish(reply, frame)
            return
        assert request.batch_inbox is not None
        batch = encode_batch([(last_token(reply), frame)])
        await self.bus.publish(request.batch_inbox, batch)

    async def _cancel(self, incoming: Incoming) -> None:
        message: Cancel = decoder_of(Cancel).decode(incoming.payload)
        self.cancelled.append(message.request_id)
        await self.bus.publish(incoming.reply, encode(Cancelled(request_id=message.request_id)))
        await self._finish(message.request_id, 0)

    async def _finish(self, request_id: RequestId, num_tokens: int) -> None:
        ending = Finished(
            request_id=request_id,
            attempt=1,
            finish_reason="length",
            usage=Usage(num_prompt_tokens=2, num_output_tokens=num_tokens, num_cached_tokens=1),
            timings=Timings(queue_ms=7.0),
            num_tokens=num_tokens,
            text_length=0,
        )
        await self.bus.publish(self._replies[request_id], encode(ending))

    def _frame(self, request_id: RequestId, index: int, num_tokens: int = 1) -> TokenFrame:
        return TokenFrame(
            request_id=request_id,
            attempt=1,
            index=index,
            text_offset=0,
            token_ids=PackedInts([5] * num_tokens),
            text="",
        )


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def service(broker: MemoryBroker) -> AsyncIterator[Service]:
    made = Service(MemoryBus(broker))
    await made.start()
    yield made
    await made.bus.close()


@pytest.fixture
async def client(broker: MemoryBroker) -> AsyncIterator[LoadClient]:
    bus = MemoryBus(broker)
    yield LoadClient(bus)
    await bus.close()


def _request(number: int) -> PlannedRequest:
    return PlannedRequest(PackedInts([number, 2]), 3, "batch", "a")


def _load(arrivals: Arrivals, seconds: float = 0.3, drain_s: float = 5.0) -> Load:
    return Load(lambda: arrivals, _request, 0.0, seconds, drain_s)


async def test_every_request_is_sent_as_planned_and_answered(
    service: Service, client: LoadClient
) -> None:
    run = await client.run(_load(ScheduledArrivals([0.0, 0.05, 0.1])), "salt")

    assert [[0, 2], [1, 2], [2, 2]] == [list(each.prompt_token_ids or ()) for each in service.asked]
    for request in service.asked:
        assert ("batch", "a") == (request.latency_class, request.tenant)
        assert (3, 0, True) == (request.max_tokens, request.temperature, request.ignore_eos)
    assert [0.0, 0.05, 0.1] == [each.due_s for each in run.samples]
    for sample in run.samples:
        assert sample.is_served
        assert [1, 1, 1] == [num_tokens for _, num_tokens in sample.arrivals]
        assert (7.0, 1) == (sample.queue_ms, sample.num_cached_tokens)


async def test_frames_that_come_in_a_batch_count_as_others(
    service: Service, client: LoadClient
) -> None:
    service.is_batching = True
    run = await client.run(_load(ScheduledArrivals([0.0, 0.0])), "salt")

    assert [[5, 5, 5]] * 2 == [each.token_ids for each in run.samples]
    assert [[1, 1, 1]] * 2 == [[number for _, number in each.arrivals] for each in run.samples]


async def test_a_late_server_does_not_slow_arrivals(service: Service, client: LoadClient) -> None:
    """Answers take three times as long as all arrivals together."""
    service.gap_s = 0.3
    run = await client.run(_load(ScheduledArrivals([idx * 0.03 for idx in range(10)])), "salt")

    assert service.times_s[-1] - service.times_s[0] < 0.6
    assert 10 == sum(each.is_served for each in run.samples)
    assert all(each.ttft_ms is not None and each.ttft_ms >= 300 for each in run.samples)


async def test_a_closed_loop_has_one_request_a_stream(service: Service, client: LoadClient) -> None:
    service.gap_s = 0.01
    arrivals = StreamArrivals(2, 0.4, 0.0, 0.0, random.Random(1))
    run = await client.run(_load(arrivals, 0.4), "salt")

    assert len(run.samples) > 4
    ends_s = [each.ended_s or 0.0 for each in run.samples]
    for sample in run.samples:
        assert sample.is_served
        spans = zip(run.samples, ends_s, strict=True)
        assert 2 >= sum(each.due_s <= sample.due_s < end_s for each, end_s in spans)


async def test_runs_share_no_cache(service: Service, client: LoadClient) -> None:
    for _ in range(2):
        await client.run(_load(ScheduledArrivals([0.0]), 0.02), "salt")

    assert 2 == len({each.cache_salt for each in service.asked})


@pytest.mark.parametrize(
    ("drain_s", "deadline_ms"), [(5.0, None), (300.0, 301_020), (1e6, 3_600_000)]
)
async def test_only_a_load_longer_than_the_usual_deadline_names_one(
    service: Service, client: LoadClient, drain_s: float, deadline_ms: int | None
) -> None:
    """Whoever names one waives what the class promises."""
    await client.run(_load(ScheduledArrivals([0.0]), 0.02, drain_s), "salt")

    assert [deadline_ms] == [each.deadline_ms for each in service.asked]


async def test_a_failure_is_an_ending_with_its_reason(service: Service, client: LoadClient) -> None:
    service.failure = Failed(code="overloaded", message="too many requests wait")
    (sample,) = (await client.run(_load(ScheduledArrivals([0.0]), 0.02), "salt")).samples

    assert "overloaded: too many requests wait" == sample.error
    assert sample.ended_s is not None
    assert not sample.is_served


async def test_who_is_not_answered_in_time_is_cancelled_and_unfinished(
    service: Service, client: LoadClient
) -> None:
    service.is_silent = True
    run = await client.run(_load(ScheduledArrivals([0.0, 0.0]), 0.05, drain_s=0.05), "salt")

    assert ["r1", "r2"] == sorted(service.cancelled)
    assert [None, None] == [each.ended_s for each in run.samples]


async def test_the_client_measures_its_own_cpu(service: Service, client: LoadClient) -> None:
    run = await client.run(_load(ScheduledArrivals([0.0] * 50), 0.3), "salt")

    assert 0.0 < run.client_cpu_share < 2.0
