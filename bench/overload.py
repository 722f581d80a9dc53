"""
Measure what interactive requests wait for while batch work asks for more than there is.

    python bench/overload.py --rounds 3 --seconds 30 --json overload.json

First a closed loop of batch work finds how much a stack can do. Then, in turns: interactive
requests alone; the same beside batch work that comes at 1.3 times that rate; and both on a stack
whose policy is `fcfs`, which puts no class first. Bars: the 95th percentile of interactive first
tokens at most twice that of the idle stack and two steps of the busy one, and at most 5 % less
throughput than with `fcfs`.
"""

import argparse
import asyncio
import contextlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loaded_stack import add_engine_options, loaded_stack, maker_of
from results import make_parser, write_results
from stack import connected

from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.shared.measure.load.arrivals import (
    Arrivals,
    ScheduledArrivals,
    StreamArrivals,
    poisson_times,
)
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.requests import PlannedRequest, RequestMaker
from slipstream.shared.measure.load.samples import LoadRun, Sample
from slipstream.shared.measure.load.summary import Summary, Target, Targets, summarize
from slipstream.shared.measure.load.traces import Lengths
from slipstream.shared.messages.common import LatencyClassName
from slipstream.shared.scheduling.queue import Policy

_TARGETS = Targets(Target())
_POLICIES: Sequence[Policy] = ("priority", "fcfs")
_OVERLOAD = 1.3
_NUM_STREAMS = 48  # of the closed loop: more than there are seats
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Mix:
    """What both kinds of requests are."""

    makers: Mapping[LatencyClassName, RequestMaker]
    options: argparse.Namespace

    def load(self, interactive_rate: float, batch_rate: float, seed: int) -> Load:
        """Return an open loop of both."""
        rng, seconds = random.Random(seed), self.options.warmup + self.options.seconds
        rates: dict[LatencyClassName, float] = {"interactive": interactive_rate}
        if batch_rate > 0:
            rates["batch"] = batch_rate
        planned = sorted(
            (at_s, name)
            for name, rate in rates.items()
            for at_s in poisson_times(rate, seconds, rng)
        )
        times, names = [at_s for at_s, _ in planned], [name for _, name in planned]
        return self._load(
            lambda: ScheduledArrivals(times),
            lambda number: self.makers[names[number]].make(number),
        )

    def full(self) -> Load:
        """Return a closed loop of batch work."""
        until_s = self.options.warmup + self.options.seconds
        return self._load(
            lambda: StreamArrivals(_NUM_STREAMS, until_s, 1.0, _PAUSE_S, random.Random(0)),
            self.makers["batch"].make,
        )

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


class Overload:
    """Two stacks under the same loads, and what was found so far, by name and round."""

    def __init__(self, clients: Mapping[Policy, LoadClient], mix: Mix) -> None:
        self.found: dict[str, list[float]] = {}
        self._clients = clients
        self._mix = mix

    async def run(self, num_rounds: int) -> None:
        """Find how much can be done, and take the rounds."""
        full = await self._clients["priority"].run(self._mix.full(), "full")
        num_ended = sum(full.holds(each.ended_s) for each in full.samples if each.ended_s)
        capacity = num_ended / full.seconds
        self._note("batch requests a second, closed loop", capacity)
        rate = self._mix.options.interactive_rate or capacity / 10
        for number in range(num_rounds):
            await self._round(number, rate, _OVERLOAD * capacity)

    async def _round(self, number: int, interactive_rate: float, batch_rate: float) -> None:
        load = self._mix.load(interactive_rate, 0, number)
        idle = of(await self._clients["priority"].run(load, f"idle {number}"), "interactive")
        assert idle.ttft_ms is not None, "the stack is idle: they are served"
        self._note("interactive p95 TTFT alone (ms)", idle.ttft_ms.p95)
        busy = {}
        for policy in _POLICIES if number % 2 == 0 else reversed(_POLICIES):
            load = self._mix.load(interactive_rate, batch_rate, number)
            busy[policy] = await self._clients[policy].run(load, f"busy {number}")
            self._note_busy(policy, busy[policy])
        ours, step_ms = of(busy["priority"], "interactive"), _step_ms(busy["priority"])
        # Without any first token the share of refusals tells.
        if ours.ttft_ms is not None:
            limit_ms = 2 * idle.ttft_ms.p95 + 2 * step_ms
            self._note("priority: p95 TTFT / bar", ours.ttft_ms.p95 / limit_ms)
        rates = {policy: summarize([run], _TARGETS) for policy, run in busy.items()}
        ratio = rates["priority"].throughput_tok_s / rates["fcfs"].throughput_tok_s
        self._note("throughput / that of fcfs", ratio)

    def _note_busy(self, policy: Policy, run: LoadRun) -> None:
        interactive = of(run, "interactive")
        # Where no class goes first they may all be refused: what they are promised can't be kept.
        if interactive.ttft_ms is not None:
            self._note(f"{policy}: interactive p95 TTFT (ms)", interactive.ttft_ms.p95)
        self._note(f"{policy}: step (ms)", _step_ms(run))
        rate = summarize([run], _TARGETS).throughput_tok_s
        self._note(f"{policy}: output tokens a second", rate)
        refused = interactive.num_failed / max(1, interactive.num_requests)
        self._note(f"{policy}: interactive refused (%)", 100 * refused)

    def _note(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)
        print(f"    {name:<52}{value:10.2f}", file=sys.stderr)


def _step_ms(run: LoadRun) -> float:
    """Return what is between two frames of batch work."""
    batch = of(run, "batch")
    assert batch.itl_ms is not None, batch.first_error
    return batch.itl_ms.p50


async def measure(urls: Mapping[Policy, str], mix: Mix, rounds: int) -> dict[str, list[float]]:
    """Take the rounds, in turns."""
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            policy: LoadClient(await stack.enter_async_context(connected(url, "bench-overload")))
            for policy, url in urls.items()
        }
        overload = Overload(clients, mix)
        await overload.run(rounds)
    return overload.found


def main() -> None:
    """Measure, print, write the file."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a window")
    parser.add_argument("--warmup", type=float, default=10.0)
    parser.add_argument("--drain", type=float, default=1.0)
    parser.add_argument("--interactive-rate", type=float, help="a second (default: a tenth)")
    parser.add_argument("--batch", default="512,128", help="tokens of batch prompts and answers")
    add_engine_options(parser)
    options = parser.parse_args()
    batch = Lengths(*map(int, options.batch.split(",")))
    makers: dict[LatencyClassName, RequestMaker] = {
        "interactive": maker_of(options, "interactive", Lengths(128, 32), spread=0.0, seed=1),
        "batch": maker_of(options, "batch", batch, spread=0.5, seed=2),
    }
    with contextlib.ExitStack() as stack:
        urls = {
            policy: stack.enter_context(loaded_stack(options, "--policy", policy))
            for policy in _POLICIES
        }
        found = asyncio.run(measure(urls, Mix(makers, options), options.rounds))
    write_results(options, found)


if __name__ == "__main__":
    main()
