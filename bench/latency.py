"""
Measure what a client waits for: refusals, the first token of a fresh start, and of a running stack.

    python bench/latency.py --rounds 10 --starts 5 --json latency.json

Each round takes every cell once, in an order of its own, so that a drift of the machine falls on
all of them alike. A cell's sample is the median over its streams; the figures are medians over
rounds. A round takes about a minute on two idle cores. The model must be in the cache already
(`slipstream model pull smollm2-135m`).
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from stack import SLIPSTREAM, connected, running_stack

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.measure.estimate import Estimate, report, table
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed, Route
from slipstream.shared.messages.generate import Finished, GenerateRequest, TokenFrame
from slipstream.shared.messages.packed import PackedInts

NUM_OUTPUT_TOKENS = 32
PROMPT_LENGTHS = (28, 512)
STREAM_COUNTS = (1, 16)
ROUTES: tuple[Route, ...] = ("remote", "local")
_ANSWER_S = 300.0
_MIB = 1024 * 1024

REFUSALS: dict[str, bytes] = {
    "malformed JSON": b'{"prompt": ',
    "unknown model": b'{"prompt": "Hello", "model": "other"}',
    "empty prompt": b'{"prompt": ""}',
    "prompt and messages": b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}',
    "id out of the vocabulary": b'{"prompt_token_ids": [999999]}',
    "negative max_tokens": b'{"prompt": "Hello", "max_tokens": -1}',
    "NaN temperature": msgspec.msgpack.encode({"prompt": "Hello", "temperature": math.nan}),
    "longer than the context": msgspec.json.encode({"prompt": "word " * 8200}),
    "5 MiB": msgspec.json.encode({"prompt": "a" * 5 * _MIB}),
}

Samples = dict[str, list[float]]
Cell = Callable[[NatsBus, random.Random, Samples], Awaitable[None]]


@dataclass(frozen=True)
class Refusal:
    """The time from publishing bad input to the answer."""

    name: str
    payload: bytes

    async def __call__(self, bus: NatsBus, _: random.Random, samples: Samples) -> None:
        """Take one sample."""
        began_s = time.perf_counter()
        answer = await bus.request(GENERATE.subject(), self.payload, timeout_s=_ANSWER_S)
        samples[f"refusal: {self.name}"].append((time.perf_counter() - began_s) * 1000)
        assert isinstance(decoder_of(ClientAnswer).decode(answer.payload), Failed), self.name


@dataclass(frozen=True)
class Streams:
    """Time to first token and time per output token of streams that start together."""

    route: Route
    num_prompt_tokens: int
    num_streams: int

    async def __call__(self, bus: NatsBus, rng: random.Random, samples: Samples) -> None:
        """Take one sample of each."""
        timings = await asyncio.gather(
            *(self._stream(bus, rng.randrange(2**31)) for _ in range(self.num_streams))
        )
        plural = "s" if self.num_streams > 1 else ""
        where = f"{self.route}, {self.num_prompt_tokens} tokens, {self.num_streams} stream{plural}"
        samples[f"TTFT: {where}"].append(statistics.median(ttft for ttft, _ in timings))
        samples[f"TPOT: {where}"].append(statistics.median(tpot for _, tpot in timings))

    async def _stream(self, bus: NatsBus, seed: int) -> tuple[float, float]:
        # Another prompt each time, so that nothing can be known of it.
        rng = random.Random(seed)
        ids = PackedInts(rng.randrange(1000, 40_000) for _ in range(self.num_prompt_tokens))
        request = GenerateRequest(
            prompt_token_ids=ids,
            stream=True,
            route=self.route,
            temperature=0,
            ignore_eos=True,
            max_tokens=NUM_OUTPUT_TOKENS,
        )
        arrived: asyncio.Queue[tuple[float, Incoming]] = asyncio.Queue()

        async def note(incoming: Incoming) -> None:
            arrived.put_nowait((time.perf_counter(), incoming))

        inbox = bus.new_inbox()
        subscription = await bus.subscribe(inbox, note)
        try:
            began_s = time.perf_counter()
            await bus.publish(GENERATE.subject(), encode(request), reply=inbox)
            async with asyncio.timeout(_ANSWER_S):
                first_s, last_s = await _first_and_last(arrived)
        finally:
            await subscription.stop()
        per_token_s = (last_s - first_s) / (NUM_OUTPUT_TOKENS - 1)
        return (first_s - began_s) * 1000, per_token_s * 1000


async def _first_and_last(
    arrived: "asyncio.Queue[tuple[float, Incoming]]",
) -> tuple[float, float]:
    """Return when the first and the last token came."""
    times_s: list[float] = []
    while True:
        time_s, incoming = await arrived.get()
        match decoder_of(ClientAnswer).decode(incoming.payload):
            case TokenFrame(token_ids=token_ids) if token_ids:
                times_s.append(time_s)
            case Finished(num_tokens=num_tokens):
                assert num_tokens == NUM_OUTPUT_TOKENS, f"{num_tokens} tokens came"
                return times_s[0], times_s[-1]
            case Failed(message=message):
                raise RuntimeError(message)


def time_to_first_text_ms() -> float:
    """Return how long `slipstream run` takes from the start of its process to its first text."""
    with tempfile.TemporaryDirectory() as directory:
        began_s = time.perf_counter()
        process = subprocess.Popen(
            [SLIPSTREAM, "run", "--max-tokens", "8"],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None, "a pipe was asked for"
        with process:
            is_text = bool(process.stdout.read(1))
            took_ms = (time.perf_counter() - began_s) * 1000
            process.stdout.read()
        assert is_text, "`slipstream run` printed nothing"
        assert process.returncode == 0, f"`slipstream run` ended with {process.returncode}"
        return took_ms


async def measure_stack(url: str, num_rounds: int, seed: int, samples: Samples) -> None:
    """Take every cell once a round; the first round warms up and is not counted."""
    cells: list[Cell] = [Refusal(name, payload) for name, payload in REFUSALS.items()]
    cells += [
        Streams(route, num_prompt_tokens, num_streams)
        for num_streams in STREAM_COUNTS
        for num_prompt_tokens in PROMPT_LENGTHS
        for route in ROUTES
    ]
    rng = random.Random(seed)
    async with connected(url, "bench-latency") as bus:
        for number in range(num_rounds + 1):
            _say(f"round {number} of {num_rounds}" if number else "warming up")
            into: Samples = samples if number else defaultdict(list)
            for cell in rng.sample(cells, len(cells)):
                await cell(bus, rng, into)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=10, help="samples a cell")
    parser.add_argument("--starts", type=int, default=5, help="samples of a fresh start")
    parser.add_argument("--seed", type=int, default=1, help="of the order and the prompts")
    parser.add_argument("--nats", help="measure the stack there (default: start one)")
    parser.add_argument("--json", type=Path, help="write samples and figures here")
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, write the file."""
    arguments = _arguments()
    samples: Samples = defaultdict(list)
    for number in range(arguments.starts):
        _say(f"start {number + 1} of {arguments.starts}")
        samples["start to first text: slipstream run"].append(time_to_first_text_ms())
    if arguments.rounds > 0:
        stack = contextlib.nullcontext(arguments.nats) if arguments.nats else running_stack()
        with stack as url:
            asyncio.run(measure_stack(url, arguments.rounds, arguments.seed, samples))
    estimates = [Estimate.of(name, values) for name, values in sorted(samples.items())]
    print(table(estimates))
    if arguments.json:
        settings = {name: getattr(arguments, name) for name in ("rounds", "starts", "seed")}
        arguments.json.write_text(json.dumps(report(estimates, settings), indent=1) + "\n")


def _say(line: str) -> None:
    print(f"==> {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
