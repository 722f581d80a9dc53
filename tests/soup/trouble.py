"""What strangers and the network do: cancels of anybody's requests, jobs that come twice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from nats.aio.msg import Msg

from slipstream.shared.bus.subjects import DECODE, PREFILL, REPORT
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.reports import WorkerReport
from tests.end_to_end import client

from .serving import Table

_CANCEL_S = 0.03  # between two, on average
_REPEATED = 0.2
_NUM_KNOWN = 200

DrawId = Callable[[Random], str]


@asynccontextmanager
async def cancelling(table: Table, seed: int, draw_id: DrawId) -> AsyncIterator[None]:
    """While a block runs, cancel requests that nobody wants cancelled, and some that never were."""
    random = Random(seed)

    over = asyncio.Event()

    async def cancel_until_over() -> None:
        while not over.is_set():
            await asyncio.sleep(random.expovariate(1 / _CANCEL_S))
            await table.cancel(draw_id(random))

    task = asyncio.create_task(cancel_until_over())
    try:
        yield
    finally:
        over.set()
        await task


@asynccontextmanager
async def repeating(asking: client.Client, seed: int) -> AsyncIterator[None]:
    """While a block runs, have workers get some jobs twice, at once or after the end."""
    random = Random(seed)
    repeated: set[bytes] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def repeat(subject: str, payload: bytes) -> None:
        await asyncio.sleep(random.choice((0.0, 0.01, 0.5)))
        await asking.connection.publish(subject, payload)

    async def see(message: Msg) -> None:
        is_job = b"_job" in message.data and message.data not in repeated
        if is_job and random.random() < _REPEATED:
            repeated.add(message.data)
            tasks.add(asyncio.create_task(repeat(message.subject, message.data)))

    taps = [
        await asking.connection.subscribe(topic.wildcard, cb=see) for topic in (PREFILL, DECODE)
    ]
    yield
    for tap in taps:
        await tap.unsubscribe()
    await asyncio.gather(*tasks)
    assert tasks, "no job was seen"


@asynccontextmanager
async def overheard_ids(asking: client.Client) -> AsyncIterator[DrawId]:
    """Draw ids that workers speak of in their reports, as anybody can hear them."""
    known: dict[str, None] = {"nobody": None}

    async def see(message: Msg) -> None:
        report = decoder_of(WorkerReport).decode(message.data)
        known.update(dict.fromkeys(each.request_id for each in report.held))

    subscription = await asking.connection.subscribe(REPORT.wildcard, cb=see)
    yield lambda random: random.choice(["nobody", *list(known)[-_NUM_KNOWN:]])
    await subscription.unsubscribe()
