"""
Measure what interactive requests wait for while batch work asks for more than there is.

    python bench/overload.py --rounds 3 --seconds 30 --json overload.json

First a closed loop of batch work finds how much a stack can do. Then, in turns: interactive
requests alone; the same beside batch work that comes at 1.3 times that rate; and both on a stack
whose policy is `fcfs`, which knows no classes. Bars: the 95th percentile of interactive first
tokens at most twice that of the idle stack and two steps of the busy one, and at most 5 % less
throughput than with `fcfs`.
"""

import argparse
import asyncio
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stack import connected, running_stack

from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.shared.measure.estimate import describe_machine
from slipstream.shared.measure.load.arrivals import (
    Arrivals,
    ScheduledArrivals,
    StreamArrivals,
    poisson_times,
)
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.requests import PlannedRequest, RequestMaker, SyntheticShapes
from slipstream.shared.measure.load.samples import LoadRun, Sample
from slipstream.shared.measure.load.summary import Summary, Target, Targets, summarize
from slipstream.shared.measure.load.traces import Lengths
from slipstream.shared.messages.common import LatencyClassName

_TARGETS = Targets(Target())
_POLICIES = ("priority", "fcfs")
_OVERLOAD = 1.3
_NUM_STREAMS = 48  # of the closed loop: more than there are seats
_PAUSE_S = 0.05
_VOCAB_SIZE = {"fake": 259}


@dataclass(frozen=True)
class Mix:
    """What both kinds of requests are."""

    makers: Mapping[LatencyClassName, RequestMaker]
    options: argparse.Namespace

    def load(self, interactive_rate: float, batch_rate: float, seed: int) -> Load:
        """Return an open loop of both."""
        rng, seconds = random.Random(seed), self.options.warmup + self.options.seconds
        planned: list[tuple[float, LatencyClassName]] = []
        for name, rate in (("interactive", interactive_rate), ("batch", batch_rate)):
            if rate > 0:
                planned += [(at_s, name) for at_s in poisson_times(rate, seconds, rng)]
        planned.sort()
        times, names = [at_s for at_s, _ in planned], [name for _, name in planned]
        return self._load(
            lambda: ScheduledArrivals(times), lambda number: self._make(names[number], number)
        )

    def full(self) -> Load:
        """Return a closed loop of batch work."""
        until_s = self.options.warmup + self.options.seconds
        return self._load(
            lambda: StreamArrivals(_NUM_STREAMS, until_s, 1.0, _PAUSE_S, random.Random(0)),
            lambda number: self._make("batch", number),
        )

    def _make(self, name: LatencyClassName, number: int) -> PlannedRequest:
        return replace(self.makers[name].make(number), latency_class=name)

    def _load(
        self, arrivals: Callable[[], Arrivals], request: Callable[[int], PlannedRequest]
    ) -> Load:
        options = self.options
        return Load(arrivals, request, options.warmup, options.seconds, options.drain)


def of(run: LoadRun, name: LatencyClassName) -> Summary:
    """Return the figures of a class."""

    def is_counted(sample: Sample) -> bool:
        return sample.request.latency_class == name

    return summarize([run], _TARGETS, is_counted)


async def measure(urls: Mapping[str, str], mix: Mix, rounds: int) -> dict[str, list[float]]:
    """Take the rounds, in turns."""
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)
        print(f"    {name:<52}{value:10.2f}", file=sys.stderr)

    async with (
        connected(urls["priority"], "bench-overload") as first,
        connected(urls["fcfs"], "bench-overload") as second,
    ):
        clients = {"priority": LoadClient(first), "fcfs": LoadClient(second)}
        full = await clients["priority"].run(mix.full(), "full")
        num_ended = sum(full.holds(each.ended_s) for each in full.samples if each.ended_s)
        capacity = num_ended / full.seconds
        note("batch requests a second, closed loop", capacity)
        rate = mix.options.interactive_rate or capacity / 10
        for number in range(rounds):
            idle = await clients["priority"].run(mix.load(rate, 0, number), f"idle {number}")
            first_token = of(idle, "interactive").ttft_ms
            assert first_token is not None, "the stack is idle: they are served"
            note("interactive p95 TTFT alone (ms)", first_token.p95)
            busy = {}
            for policy in _POLICIES if number % 2 == 0 else reversed(_POLICIES):
                load = mix.load(rate, _OVERLOAD * capacity, number)
                busy[policy] = run = await clients[policy].run(load, f"busy {number}")
                interactive, batch = of(run, "interactive"), of(run, "batch")
                whole = summarize([run], _TARGETS)
                # Without classes they may all be refused: what is promised them can't be kept.
                if interactive.ttft_ms is not None:
                    note(f"{policy}: interactive p95 TTFT (ms)", interactive.ttft_ms.p95)
                assert batch.itl_ms is not None, batch.first_error
                note(f"{policy}: step (ms)", batch.itl_ms.p50)
                note(f"{policy}: output tokens a second", whole.throughput_tok_s)
                refused = interactive.num_failed / max(1, interactive.num_requests)
                note(f"{policy}: interactive refused (%)", 100 * refused)
            limit = 2 * first_token.p95 + 2 * found["priority: step (ms)"][-1]
            note(
                "priority: p95 TTFT / bar", found["priority: interactive p95 TTFT (ms)"][-1] / limit
            )
            ratio = (
                found["priority: output tokens a second"][-1]
                / found["fcfs: output tokens a second"][-1]
            )
            note("throughput / that of fcfs", ratio)
    return found


def main() -> None:
    """Measure, print, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a window")
    parser.add_argument("--warmup", type=float, default=10.0)
    parser.add_argument("--drain", type=float, default=1.0)
    parser.add_argument("--interactive-rate", type=float, help="a second (default: a tenth)")
    parser.add_argument("--engine", default="auto", choices=("auto", "fake"))
    parser.add_argument("--format", default="auto", help="of the weights")
    parser.add_argument("--batch", default="512,128", help="tokens of batch prompts and answers")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    vocab_size = _VOCAB_SIZE.get(options.engine, 40_000)
    prompt, output = map(int, options.batch.split(","))
    makers = {
        name: RequestMaker(SyntheticShapes(lengths, spread, seed), vocab_size, seed, {}, {})
        for name, lengths, spread, seed in (
            ("interactive", Lengths(128, 32), 0.0, 1),
            ("batch", Lengths(prompt, output), 0.5, 2),
        )
    }
    common = ["--engine", options.engine, "--format", options.format]
    if options.engine == "fake":
        common.append("--test-mode")
        os.environ |= {"SLIPSTREAM_FAKE_STEP_MS": "10", "SLIPSTREAM_FAKE_ROW_US": "100"}
    with (
        running_stack("--policy", "priority", *common) as ours,
        running_stack("--policy", "fcfs", *common) as theirs,
    ):
        urls = {"priority": ours, "fcfs": theirs}
        found = asyncio.run(measure(urls, Mix(makers, options), options.rounds))
    if options.json:
        names = ("rounds", "seconds", "warmup", "engine", "format", "batch")
        written = {
            "machine": describe_machine(),
            "settings": {name: getattr(options, name) for name in names},
            "results": found,
        }
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
