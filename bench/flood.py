"""
Measure a flood: ten times more requests than can be served, and what is left of it afterwards.

    python bench/flood.py --engine fake --seconds 60 --json flood.json

Interactive requests come at ten times the rate that a closed loop reaches. Bars: the scheduler's
memory stays bounded, refusals are fast, whoever is let in has its first token as its class
promises, and five seconds after the flood first tokens come as they did before it.
"""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loaded_stack import add_engine_options, loaded_stack, maker_of
from results import make_parser, write_results
from scheduler_cpu import pid_of
from stack import connected

from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.shared.measure.load.arrivals import (
    ScheduledArrivals,
    StreamArrivals,
    even_times,
    poisson_times,
)
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.requests import RequestMaker
from slipstream.shared.measure.load.samples import LoadRun, Sample
from slipstream.shared.measure.load.summary import percentile
from slipstream.shared.measure.load.traces import Lengths
from slipstream.shared.scheduling.classes import CLASSES

_FACTOR = 10
_NUM_STREAMS = 48
_IDLE_RATE = 2.0
_RECOVERY_S = 5.0
_AFTER_S = _RECOVERY_S + 5.0  # in which first tokens are looked at once more
_MIB = 1024 * 1024


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


async def watch_memory(pid: int, seen: list[float]) -> None:
    """Look at a process's memory for ever."""
    while True:
        seen.append(memory_mib(pid))
        await asyncio.sleep(0.5)


def first_tokens_ms(run: LoadRun, since_s: float = 0.0) -> list[float]:
    """Return what was waited for first tokens by those that had one, in order of length."""
    return sorted(
        each.ttft_ms for each in run.samples if each.ttft_ms is not None and each.due_s >= since_s
    )


def refused_after_ms(run: LoadRun) -> list[float]:
    """Return how soon the refused knew it, in order of length."""
    return sorted(
        (each.ended_s - each.sent_s) * 1000
        for each in run.samples
        if _is_refused(each) and each.ended_s is not None
    )


def _is_refused(sample: Sample) -> bool:
    return (sample.error or "").startswith("overloaded")


@dataclass(frozen=True)
class Seen:
    """What was seen before a flood, in it and after it."""

    capacity: float  # requests a second that a closed loop had served
    before: LoadRun
    before_mib: float
    flood: LoadRun  # with what comes after it
    flood_s: float
    took_s: float
    flood_mib: Sequence[float]  # of the scheduler, now and then


async def measure(url: str, maker: RequestMaker, seconds: float) -> Seen:
    """Fill, flood, and look at what comes after."""
    pid = pid_of("scheduler", url)
    rng = random.Random(1)
    async with connected(url, "bench-flood") as bus:
        client = LoadClient(bus)
        streams = StreamArrivals(_NUM_STREAMS, 10.0, 1.0, 0.05, rng)
        full = await client.run(Load(lambda: streams, maker.make, 0.0, 10.0, 30.0), "full")
        capacity = _served_a_second(full)
        idle = ScheduledArrivals(even_times(_IDLE_RATE, 5.0))
        before = await client.run(Load(lambda: idle, maker.make, 0.0, 5.0, 10.0), "before")
        before_mib, flood_mib = memory_mib(pid), list[float]()
        times = poisson_times(_FACTOR * capacity, seconds, rng)
        times += [seconds + each for each in even_times(_IDLE_RATE, _AFTER_S)]
        flood = Load(
            lambda: ScheduledArrivals(times), maker.make, 0.0, seconds + _AFTER_S, drain_s=20.0
        )
        watching = asyncio.create_task(watch_memory(pid, flood_mib))
        began = time.monotonic()
        flooded = await client.run(flood, "flood")
        took_s = time.monotonic() - began
        watching.cancel()
    return Seen(capacity, before, before_mib, flooded, seconds, took_s, flood_mib)


def _served_a_second(run: LoadRun) -> float:
    ends_s = [each.ended_s for each in run.samples if each.is_served and each.ended_s is not None]
    return len(ends_s) / max(ends_s)


def figures_of(seen: Seen) -> dict[str, float]:
    """Return what a flood comes to."""
    samples = seen.flood.samples
    answered = first_tokens_ms(seen.flood)
    refused = refused_after_ms(seen.flood)
    queued = sorted(each.queue_ms for each in samples if each.queue_ms is not None)
    others = [each for each in samples if not each.is_served and not _is_refused(each)]
    target_ms = 1000 * CLASSES["interactive"].ttft_target_s
    after_ms = first_tokens_ms(seen.flood, seen.flood_s + _RECOVERY_S)
    return {
        "served a second, closed loop": seen.capacity,
        "requests": len(samples),
        "served": sum(each.is_served for each in samples),
        "refused": len(refused),
        "neither": len(others),
        "refusal p50 (ms)": percentile(refused, 50),
        "refusal p99 (ms)": percentile(refused, 99),
        "first token p50 (ms)": percentile(answered, 50),
        "first token p99 (ms)": percentile(answered, 99),
        "of it in the queue, p50 (ms)": percentile(queued, 50),
        "share of first tokens in time": sum(each <= target_ms for each in answered)
        / len(answered),
        "first token before, p50 (ms)": percentile(first_tokens_ms(seen.before), 50),
        "first token five seconds after, p50 (ms)": percentile(after_ms, 50),
        "scheduler before (MiB)": seen.before_mib,
        "scheduler at most (MiB)": max(seen.flood_mib),
        "load generator, share of a core": seen.flood.client_cpu_share,
        "seconds": seen.took_s,
    }


def main() -> None:
    """Measure, print, write the file."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the flood")
    add_engine_options(parser)
    options = parser.parse_args()
    maker = maker_of(options, "interactive", Lengths(128, 32), spread=0.5, seed=1)
    # One: it is the leading one's memory that is looked at.
    with loaded_stack(options, "--scheduler", "1") as url:
        figures = figures_of(asyncio.run(measure(url, maker, options.seconds)))
    for name, value in figures.items():
        print(f"{name:<45}{value:12.2f}")
    write_results(options, figures)


if __name__ == "__main__":
    main()
