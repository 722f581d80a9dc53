"""
Measure what a short request waits for behind long prompts that are cancelled.

    python bench/head_of_line.py --rounds 10 --json head_of_line.json

Ten prompts of 4,000 tokens are being computed, a short request comes behind them, and they are all
cancelled. From the answer to the last cancel on it should take the step that runs, and what the
short request takes on an idle stack, which each round measures too. All KV blocks of the cancelled
are to be free within a second.
"""

import asyncio
import random
import time
from collections.abc import Sequence

import msgspec
from results import make_parser, settings_of, write
from stack import MeteredStack, connected, metered_stack
from streams import answers, request

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import CANCEL, GENERATE
from slipstream.shared.ids import RequestId
from slipstream.shared.measure.estimate import Estimate, report, table
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Accepted, Route
from slipstream.shared.messages.generate import Cancel

_NUM_LONG = 10
_LONG_TOKENS, _SHORT_TOKENS = 4000, 64
_NUM_OUTPUT = 4
_BEGIN_S = 0.5  # by then the first of them are being computed
_FREE_S = 10.0
_DEADLINE_MS = 300_000
_ACCEPT_S = 10.0
_UNIT = "ms"
_ROUTES: Sequence[Route] = ("remote", "local")

Samples = dict[str, list[float]]


class Crowd:
    """Long prompts that are accepted, and then cancelled."""

    def __init__(self, bus: NatsBus, route: Route) -> None:
        self._bus = bus
        self._route = route
        self._ids: list[RequestId] = []
        self._are_in = asyncio.Event()

    async def come(self, rng: random.Random) -> None:
        """Ask for all of them, and return when they are accepted."""
        inbox = self._bus.new_inbox()
        await self._bus.subscribe(inbox, self._take)
        for _ in range(_NUM_LONG):
            asked = request(rng, _LONG_TOKENS, self._route, _NUM_OUTPUT)
            # Its own deadline: ten of them would be more than a queue is to hold otherwise.
            asked = msgspec.structs.replace(asked, deadline_ms=_DEADLINE_MS)
            await self._bus.publish(GENERATE.subject(), encode(asked), reply=inbox)
        async with asyncio.timeout(_ACCEPT_S):
            await self._are_in.wait()

    async def cancel(self) -> None:
        """Cancel all of them at once; return when each cancel is answered."""
        cancels = (
            call(self._bus, CANCEL, Cancel(request_id=each), timeout_s=5.0, request_id=each)
            for each in self._ids
        )
        await asyncio.gather(*cancels)

    async def _take(self, incoming: Incoming) -> None:
        message = decoder_of(ClientAnswer).decode(incoming.payload)
        if isinstance(message, Accepted) and message.request_id not in self._ids:
            self._ids.append(message.request_id)
            if len(self._ids) == _NUM_LONG:
                self._are_in.set()


async def first_token_at(bus: NatsBus, rng: random.Random, route: Route) -> float:
    """Ask for a short answer; return when its first token came."""
    at = 0.0
    async for _ in answers(bus, request(rng, _SHORT_TOKENS, route, _NUM_OUTPUT)):
        at = at or time.perf_counter()
    return at


async def blocks_free_at(stack: MeteredStack) -> float:
    """Return when no block is held any more."""
    deadline = time.perf_counter() + _FREE_S
    while time.perf_counter() < deadline:
        found = await asyncio.to_thread(stack.metrics, "kv")
        if not sum(found.get(f"kv_blocks {state}", 0) for state in ("leased", "committed")):
            return time.perf_counter()
        await asyncio.sleep(0.01)
    raise SystemExit(f"blocks are still held {_FREE_S:g} s after the last cancel")


async def measure(stack: MeteredStack, rng: random.Random, num_rounds: int) -> Samples:
    """Take the rounds, routes in turns."""
    samples: Samples = {}
    async with connected(stack.url, "bench-head-of-line") as bus:
        for _ in range(num_rounds):
            for route in rng.sample(_ROUTES, len(_ROUTES)):
                began = time.perf_counter()
                idle_ms = 1000 * (await first_token_at(bus, rng, route) - began)
                crowd = Crowd(bus, route)
                await crowd.come(rng)
                await asyncio.sleep(_BEGIN_S)
                short = asyncio.create_task(first_token_at(bus, rng, route))
                await asyncio.sleep(0.05)
                await crowd.cancel()
                cancelled_at = time.perf_counter()
                waited_ms = 1000 * (await short - cancelled_at)
                free_ms = 1000 * (await blocks_free_at(stack) - cancelled_at)
                for name, value in (
                    ("first token on an idle stack", idle_ms),
                    ("first token after the last cancel", waited_ms),
                    ("until all blocks are free", free_ms),
                ):
                    samples.setdefault(f"{route}: {name}", []).append(value)
    return samples


def main() -> None:
    """Measure, print, write the file."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--format", default="auto", help="of the weights")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with metered_stack("--format", options.format) as stack:
        samples = asyncio.run(measure(stack, rng, options.rounds))
    estimates = [Estimate.of(name, values) for name, values in samples.items()]
    print(table(estimates, _UNIT))
    write(options, report(estimates, settings_of(options), _UNIT))


if __name__ == "__main__":
    main()
