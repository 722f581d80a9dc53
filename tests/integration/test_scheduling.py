"""Who is served when there is more than can be, with the fake engine's known times."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import pytest

from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import DECODE, GENERATE
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.errors import ServiceDrainedError
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion, Finished
from slipstream.shared.messages.reports import Drain
from slipstream.shared.scheduling.classes import CLASSES

from .service_stack import LONG, Client, ServiceStack, until, until_empty
from .serving_books import TokenBook, p95, time_refusals

pytestmark = pytest.mark.nats

Start = Callable[..., Awaitable[ServiceStack]]

# A step lasts ten milliseconds whatever is in it: the machine's noise is small beside that.
STEPPING = {"every": {"fake": FakeEngineConfig(step_ms=10, row_us=0, context_token_ns=0)}}


def prompt_of(num_tokens: int, first: int) -> list[int]:
    """Return a prompt that begins like no other."""
    return [10 + first % 200, 10 + first // 200 % 200, *([65] * (num_tokens - 2))]


async def ask(client: Client, number: int, **fields: Any) -> Completion:
    answer = await client.ask(
        "",
        **{
            "prompt_token_ids": prompt_of(40, number),
            "max_tokens": 8,
            "ignore_eos": True,
            "route": "local",
            "deadline_ms": 60_000,
            "timeout_s": 60,
            **fields,
        },
    )
    assert isinstance(answer, Completion), answer
    return answer


@pytest.fixture
async def many(nats_server: Any) -> Any:
    """A client that waits long."""
    bus = await NatsBus.connect(nats_server.url, "test-many")
    yield Client(bus)
    await bus.close()


async def test_tenants_share_equally_while_both_have_work(start: Start, many: Client) -> None:
    """
    One sends ten times more requests, the other's are longer: of the tokens each gets half.

    Not of the requests, of which the modest one gets a sixth.
    """
    stack = await start(
        every={"fake": FakeEngineConfig(step_ms=5, row_us=0, context_token_ns=0)},
        scheduler={"policy": "fair"},
        decode={"num_seats": 4},
        kv={"num_blocks": 128},
    )
    num_long, num_output = 200, 8
    lengths = {"greedy": 30, "modest": num_long}
    book = TokenBook(stack, "tenant")
    at_first: Counter[str] = Counter()
    samples: list[Counter[str]] = []

    async def one(number: int, tenant: str) -> None:
        prompt = prompt_of(lengths[tenant], number)
        answer = await ask(many, number, tenant=tenant, prompt_token_ids=prompt)
        book.answered(tenant, answer)
        if at_first and book.waiting() == lengths.keys():
            samples.append(book.served() - at_first)

    async with asyncio.TaskGroup() as group:
        for number in range(400):
            group.create_task(one(number, "greedy"))
        await until(lambda: len(stack.desk.load.queue) > 100)
        for number in range(40):
            group.create_task(one(1000 + number, "modest"))
        await until(lambda: book.waiting() == lengths.keys())
        at_first = book.served()

    for served in samples:
        half = served.total() / 2
        # One request goes after the other: who is ahead is so by no more than one.
        assert abs(served["modest"] - half) <= 0.05 * half + num_long + num_output, served
    assert samples[-1].total() > 12_000, "they had work for long enough to tell"
    await until_empty(stack)


async def test_an_interactive_request_is_not_hostage_to_batch_work(
    start: Start, many: Client
) -> None:
    """
    At more than can be served, first tokens come about as soon as on an idle stack.

    Batch work has the rest: of eight seats the six that aren't kept, less the time that requests
    and their prompts take to follow each other.
    """
    num_seats, step_ms = 8, 10
    stack = await start(**STEPPING, decode={"num_seats": num_seats}, kv={"num_blocks": 128})
    unloaded = [
        (await ask(many, number, latency_class="interactive")).timings.ttft_ms
        for number in range(20)
    ]
    book = TokenBook(stack, "latency_class", counts_prompts=False)

    async def one(number: int) -> Completion:
        answer = await ask(many, 500 + number, latency_class="batch", max_tokens=60)
        book.answered("batch", answer)
        return answer

    batch = [asyncio.create_task(one(number)) for number in range(36)]
    await until(lambda: len(stack.desk.load.queue) > 20)
    began_at, served_before = time.monotonic(), book.served()["batch"]
    answers = [await ask(many, 2000 + each, latency_class="interactive") for each in range(25)]
    elapsed_ms = (time.monotonic() - began_at) * 1000
    num_batch_tokens = book.served()["batch"] - served_before
    assert "batch" in book.waiting(), "the batch work was there all the time"
    loaded = [each.timings.ttft_ms for each in answers]
    # A step as long as it was, on a machine that others use too: each gives a token a seat.
    each_ms = median((e.timings.total_ms - e.timings.ttft_ms) / 7 for e in answers)
    num_possible = num_seats * elapsed_ms / each_ms

    assert p95(loaded) <= 2 * p95(unloaded) + 2 * step_ms
    assert num_batch_tokens > 0.5 * num_possible
    assert all(len(each.choices[0].token_ids) == 60 for each in await asyncio.gather(*batch))
    await until_empty(stack)


async def test_a_short_request_behind_cancelled_prompts_starts_at_once(
    start: Start, many: Client
) -> None:
    """Ten prompts of 4,000 tokens, all cancelled: no step of them is computed any more."""
    step_ms = 10
    stack = await start(
        **STEPPING, prefill={"token_budget": 32, "prompt_step_ms": 60_000}, kv={"num_blocks": 2000}
    )
    inboxes = [many.bus.new_inbox() for _ in range(10)]
    for number, inbox in enumerate(inboxes):
        body = {
            "prompt_token_ids": prompt_of(4000, number),
            "stream": True,
            "route": "remote",
            "max_tokens": 4,
        }
        await many.bus.publish(GENERATE.subject(), json.dumps(body).encode(), reply=inbox)
    records = stack.desk.records
    await until(lambda: len(records) == len(inboxes))
    await until(lambda: any(each.phase == "prefilling" for each in records.values()))
    await asyncio.sleep(10 * step_ms / 1000)
    short = asyncio.create_task(ask(many, 999, route="remote"))
    await until(lambda: len(records) == len(inboxes) + 1)
    cancelled = [many.cancel(each) for each in list(records)[: len(inboxes)]]
    await asyncio.gather(*cancelled)
    cancelled_at = time.monotonic()
    answer = await short
    ended_at = time.monotonic()
    # A chunk that runs, its own two, eight steps of answer: nothing of the cancelled ones.
    num_steps = (ended_at - cancelled_at) * 1000 / step_ms

    assert 8 == len(answer.choices[0].token_ids)
    assert num_steps < 10 * (1 + 2 + 8)
    await until_empty(stack, 1.0)


async def test_a_flood_is_refused_fast_and_leaves_nothing_behind(
    start: Start, many: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times more than fits: refusals at once, those let in are served, then it is as before."""
    step_ms, max_num_waiting = 10, 40
    stack = await start(
        **STEPPING,
        scheduler={"max_num_waiting": max_num_waiting},
        decode={"num_seats": 4},
        kv={"num_blocks": 64},
    )
    before = median([(await ask(many, number)).timings.ttft_ms for number in range(9)])
    cost_ms = time_refusals(stack, monkeypatch)
    refused_ms: list[float] = []
    served: list[Completion] = []

    async def one(number: int) -> None:
        began = time.monotonic()
        answer = await many.ask(
            "",
            prompt_token_ids=prompt_of(40, number),
            max_tokens=8,
            ignore_eos=True,
            route="local",
            latency_class="interactive",
            timeout_s=60,
        )
        if isinstance(answer, Failed):
            assert "overloaded" == answer.code
            assert answer.retry_after_ms is not None
            refused_ms.append((time.monotonic() - began) * 1000)
        else:
            served.append(answer)

    flood = []
    for number in range(600):
        flood.append(asyncio.create_task(one(number)))
        await asyncio.sleep(0.002)
        assert len(stack.desk.load.queue) <= max_num_waiting + 4, "and what found a seat not free"
    await asyncio.gather(*flood)
    ended_at = time.monotonic()

    assert len(refused_ms) > 200
    assert len(served) + len(refused_ms) == 600
    assert len(cost_ms) == len(refused_ms), "who was let in was answered, not refused after a while"
    assert median(refused_ms) < 50
    assert median(cost_ms) < 10, "of the scheduler's time; it is less than one on a quiet machine"
    target_ms = 1000 * CLASSES["interactive"].ttft_target_s
    assert max(each.timings.ttft_ms for each in served) < target_ms
    await until_empty(stack)
    after = median([(await ask(many, 900 + number)).timings.ttft_ms for number in range(9)])
    assert time.monotonic() - ended_at < 5
    assert after < 1.2 * before + step_ms


@pytest.mark.slow
@pytest.mark.parametrize("where", ["waiting", "decoding"])
async def test_a_plain_client_that_vanishes_is_noticed(
    start: Start, many: Client, nats_server: Any, where: str
) -> None:
    """Its request would run for minutes; its connection is gone, and so is the request."""
    stack = await start(
        every={"fake": FakeEngineConfig(step_ms=20, row_us=0, context_token_ns=0)},
        decode={"num_seats": 1},
    )
    holder = None
    if where == "waiting":
        holder = asyncio.create_task(
            many.ask("Hold", max_tokens=4000, ignore_eos=True, route="local", timeout_s=60)
        )
        await until(lambda: any(e.phase == "decoding" for e in stack.desk.records.values()))
    bus = await NatsBus.connect(nats_server.url, "test-vanishing")
    asking = asyncio.create_task(
        Client(bus).ask("Me", max_tokens=4000, ignore_eos=True, route="local", timeout_s=60)
    )
    num_held = 2 if holder else 1
    await until(lambda: len(stack.desk.records) == num_held)
    await asyncio.sleep(2.5)  # it has been seen there
    await bus.client.close()
    gone_at = time.monotonic()
    await until(lambda: len(stack.desk.records) == num_held - 1, 15)

    assert 4 < time.monotonic() - gone_at < 12
    asking.cancel()
    if holder is not None:
        assert not holder.done(), "the client that is there keeps its request"
        await many.cancel(next(iter(stack.desk.records)))
        await holder
    await until_empty(stack)


@pytest.mark.slow
async def test_a_client_that_waits_long_is_not_taken_for_gone(start: Start, many: Client) -> None:
    """Streams and plain requests alike, in the queue for longer than an absence may last."""
    stack = await start(
        every={"fake": FakeEngineConfig(step_ms=20, row_us=0, context_token_ns=0)},
        decode={"num_seats": 1},
    )
    holder = asyncio.create_task(many.ask("Hold", max_tokens=450, ignore_eos=True, route="local"))
    await until(lambda: any(each.phase == "decoding" for each in stack.desk.records.values()))
    plain = asyncio.create_task(ask(many, 1))
    async with many.stream(LONG, max_tokens=4, route="local") as stream:
        ending = await stream.ending()

    assert isinstance(ending, Finished)
    assert ending.timings.queue_ms > 6000
    await asyncio.gather(holder, plain)
    await until_empty(stack)


async def test_an_unknown_class_is_refused_by_name(start: Start, many: Client) -> None:
    await start("scheduler")
    answer = await many.ask("Hello", latency_class="express")

    assert isinstance(answer, Failed)
    assert ("invalid_request", "latency_class") == (answer.code, answer.field)


async def test_a_drained_worker_finishes_what_it_holds_and_gets_nothing_more(
    start: Start, many: Client
) -> None:
    stack = await start(
        "kv",
        "scheduler",
        "decode",
        "decode",
        every={"fake": FakeEngineConfig(step_ms=5, row_us=0, context_token_ns=0)},
    )
    leaving, staying = (each.service for each in stack.living("decode"))
    async with contextlib.AsyncExitStack() as streams:
        running = [
            await streams.enter_async_context(
                many.stream(f"Hold {number}", max_tokens=300, ignore_eos=True, route="local")
            )
            for number in range(4)
        ]
        await until(lambda: all(each.token_ids for each in running))
        assert 2 == leaving._parts.jobs.num_held
        told = await call(many.bus, DECODE, Drain(), timeout_s=2, worker_id=leaving.worker_id)
        assert told.is_draining
        await until(lambda: stack.desk._fleet.num_open("decode") == 1, 2)
        more = [await ask(many, number) for number in range(4)]
        assert 2 == leaving._parts.jobs.num_held, "its streams run on"
        endings = [await each.ending() for each in running]

    assert all(isinstance(each, Finished) for each in endings)
    assert [300] * 4 == [len(each.token_ids) for each in running]
    assert 4 == len(more)
    with pytest.raises(ServiceDrainedError):
        await asyncio.wait_for(leaving.wait(), 5)
    assert not staying._parts.jobs.is_draining
    await until_empty(stack)


async def test_workers_that_come_and_go_are_noticed_within_two_seconds(
    start: Start, many: Client
) -> None:
    stack = await start("kv", "scheduler", "decode", "prefill")
    fleet = stack.desk._fleet
    assert "remote" == (await ask(many, 1, route="auto", prompt_token_ids=prompt_of(200, 1))).route
    await stack.add("decode")
    assert 2 == fleet.num_open("decode"), "it was known before it had any work"

    (prefill,) = stack.living("prefill")
    await stack.kill(prefill)
    killed_at = time.monotonic()
    await until(lambda: not fleet.num_open("prefill"), 2)
    answer = await ask(many, 2, route="auto", prompt_token_ids=prompt_of(200, 2))

    assert time.monotonic() - killed_at < 2
    assert ("local", "no_prefill_worker") == (answer.route, answer.route_reason)
    await until_empty(stack)


async def test_a_job_for_a_worker_that_just_died_goes_elsewhere_at_once(
    start: Start, many: Client
) -> None:
    """Nobody listens there: the server says so, and no silence is waited for."""
    stack = await start("kv", "scheduler", "decode", "decode")
    await stack.kill(stack.living("decode")[0])
    answers = [await ask(many, number) for number in range(4)]

    assert all(each.timings.queue_ms < 500 for each in answers)
    await until_empty(stack)
