"""Streams to measure: those of a request, and many that never end."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed, Route
from slipstream.shared.messages.generate import Finished, GenerateRequest, TokenFrame
from slipstream.shared.messages.packed import PackedInts

STREAM_PROMPT_TOKENS = 256
_STREAM_TOKENS = 3000
_SETTLE_S = 1.0
_ANSWER_S = 1800.0  # between two messages: a prompt may wait for many others


class Stream:
    """One endless stream; it begins again when its answer has ended."""

    def __init__(self, bus: NatsBus, rng: random.Random) -> None:
        self._bus = bus
        self._rng = rng
        self.times_s: list[list[float]] = []  # of the tokens of each answer
        self.has_begun = asyncio.Event()

    async def run(self) -> None:
        """Stream for ever."""
        while True:
            times_s: list[float] = []
            self.times_s.append(times_s)
            asked = request(self._rng, STREAM_PROMPT_TOKENS, "local", _STREAM_TOKENS)
            async for _ in answers(self._bus, asked):
                times_s.append(time.perf_counter())
                self.has_begun.set()

    def gaps_ms(self, since_s: float) -> list[float]:
        """Return the gaps between tokens that came after a moment."""
        return [
            (after - before) * 1000
            for times_s in self.times_s
            for before, after in itertools.pairwise(times_s)
            if before >= since_s
        ]


def request(rng: random.Random, num_tokens: int, route: Route, max_tokens: int) -> GenerateRequest:
    """Return a request whose prompt nobody has seen."""
    return GenerateRequest(
        prompt_token_ids=PackedInts(rng.randrange(1000, 40_000) for _ in range(num_tokens)),
        stream=True,
        route=route,
        temperature=0,
        ignore_eos=True,
        max_tokens=max_tokens,
        speculation="off",
    )


async def answers(bus: NatsBus, asked: GenerateRequest) -> AsyncIterator[TokenFrame]:
    """Yield the frames of a request that hold tokens."""
    arrived: asyncio.Queue[Incoming] = asyncio.Queue()
    inbox = bus.new_inbox()
    subscription = await bus.subscribe(inbox, arrived.put)
    try:
        await bus.publish(GENERATE.subject(), encode(asked), reply=inbox)
        while True:
            async with asyncio.timeout(_ANSWER_S):
                incoming = await arrived.get()
            match decoder_of(ClientAnswer).decode(incoming.payload):
                case TokenFrame(token_ids=token_ids) as frame if token_ids:
                    yield frame
                case Finished():
                    return
                case Failed(message=message):
                    raise RuntimeError(message)
    finally:
        await subscription.stop()


@contextlib.asynccontextmanager
async def streaming(
    bus: NatsBus, rng: random.Random, num_streams: int
) -> AsyncIterator[list[Stream]]:
    """Streams that run while a block does, all of them past their first tokens."""
    streams = [Stream(bus, rng) for _ in range(num_streams)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream.run()) for stream in streams]
        await asyncio.gather(*(stream.has_begun.wait() for stream in streams))
        await asyncio.sleep(_SETTLE_S)
        yield streams
        for task in tasks:
            task.cancel()
    # Their requests end with their inboxes; what comes next must not share the cores with them.
    await asyncio.sleep(8 * _SETTLE_S)
