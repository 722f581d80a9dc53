"""
Measure what long prompts that arrive back to back cost running streams, and the other way round.

    python bench/prompt_arrivals.py --rounds 4 --seconds 8 --json prompt_arrivals.json

Each round takes prompts alone, then streams: alone, beside prompts, beside prompts, alone, so that
the growth of their contexts falls on both alike; for each route. A gap is the time between two
tokens of one stream. The figures: the p99 gap beside prompts in median gaps of streams alone, and
the prompts' rate in their rate alone.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

from stack import connected, running_stack

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed, Route
from slipstream.shared.messages.generate import Finished, GenerateRequest, TokenFrame
from slipstream.shared.messages.packed import PackedInts

NUM_STREAMS = 16
NUM_PROMPT_TOKENS = 4000
STREAM_PROMPT_TOKENS = 256
ROUTES: tuple[Route, ...] = ("local", "remote")
_SETTLE_S = 1.0
_ANSWER_S = 300.0


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
            asked = request(self._rng, STREAM_PROMPT_TOKENS, "local", 3000)
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


async def prompts_for(bus: NatsBus, rng: random.Random, route: Route, seconds: float) -> float:
    """Send prompts one after another for a time; return prompt tokens a second."""
    began_s = time.perf_counter()
    num_prompts = 0
    while time.perf_counter() - began_s < seconds:
        async for _ in answers(bus, request(rng, NUM_PROMPT_TOKENS, route, 1)):
            pass
        num_prompts += 1
    return num_prompts * NUM_PROMPT_TOKENS / (time.perf_counter() - began_s)


@contextlib.asynccontextmanager
async def streaming(bus: NatsBus, rng: random.Random) -> AsyncIterator[list[Stream]]:
    """Streams that run while a block does, all of them past their first tokens."""
    streams = [Stream(bus, rng) for _ in range(NUM_STREAMS)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream.run()) for stream in streams]
        await asyncio.gather(*(stream.has_begun.wait() for stream in streams))
        await asyncio.sleep(_SETTLE_S)
        yield streams
        for task in tasks:
            task.cancel()
    # Their requests end with their inboxes; what comes next must not share the cores with them.
    await asyncio.sleep(8 * _SETTLE_S)


async def measure(
    bus: NatsBus, num_rounds: int, seconds: float, seed: int
) -> dict[str, dict[str, list[float]]]:
    """Return for each route the gaps, and the rates, of each phase."""
    rng = random.Random(seed)
    found: dict[str, dict[str, list[float]]] = {route: defaultdict(list) for route in ROUTES}
    for number in range(num_rounds):
        for route in rng.sample(ROUTES, len(ROUTES)):
            _say(f"round {number + 1} of {num_rounds}, {route}")
            samples = found[route]
            samples["rate alone"].append(await prompts_for(bus, rng, route, seconds))
            async with streaming(bus, rng) as streams:
                for is_beside in (False, True, True, False):
                    began_s = time.perf_counter()
                    if is_beside:
                        rate = await prompts_for(bus, rng, route, seconds)
                        samples["rate beside"].append(rate)
                    else:
                        await asyncio.sleep(seconds)
                    gaps = [gap for each in streams for gap in each.gaps_ms(began_s)]
                    samples["gaps beside" if is_beside else "gaps alone"] += gaps
    return found


def figures(samples: dict[str, list[float]]) -> dict[str, float]:
    """Return the medians, the p99s and the two ratios."""
    alone, beside = samples["gaps alone"], samples["gaps beside"]
    rates = {name: statistics.median(samples[f"rate {name}"]) for name in ("alone", "beside")}
    median_ms = statistics.median(alone)
    return {
        "median gap alone ms": median_ms,
        "p99 gap alone ms": _p99(alone),
        "median gap beside ms": statistics.median(beside),
        "p99 gap beside ms": _p99(beside),
        "prompt tok/s alone": rates["alone"],
        "prompt tok/s beside": rates["beside"],
        "p99 beside / median alone": _p99(beside) / median_ms,
        "p99 alone / median alone": _p99(alone) / median_ms,
        "prompt rate kept": rates["beside"] / rates["alone"],
    }


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


async def _run(url: str, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    async with connected(url, "bench-prompt-arrivals") as bus:
        found = await measure(bus, arguments.rounds, arguments.seconds, arguments.seed)
    return {route: figures(samples) for route, samples in found.items()}


def main() -> None:
    """Measure, print, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of a phase, of which a route has five"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", default="auto", help="of the weights")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with running_stack("--format", arguments.format) as url:
        found = asyncio.run(_run(url, arguments))
    for route, values in found.items():
        print(route)
        for name, value in values.items():
            print(f"  {name:<28}{value:10.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def _say(line: str) -> None:
    print(f"==> {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
