"""
Measure a flood: ten times more requests than can be served, and what is left of it afterwards.

    python bench/flood.py --engine fake --seconds 60 --json flood.json

Interactive requests come at ten times the rate that a closed loop reaches. Bars: the scheduler's
memory stays bounded, refusals are fast, whoever is let in has its first token as its class
promises, and five seconds after the flood first tokens come as they did before it.
"""

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scheduler_cpu import pid_of
from stack import connected, running_stack

from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.shared.measure.estimate import describe_machine
from slipstream.shared.measure.load.arrivals import (
    Arrivals,
    ScheduledArrivals,
    StreamArrivals,
    even_times,
    poisson_times,
)
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.requests import PlannedRequest, RequestMaker, SyntheticShapes
from slipstream.shared.measure.load.samples import LoadRun, Sample
from slipstream.shared.measure.load.summary import percentile
from slipstream.shared.measure.load.traces import Lengths
from slipstream.shared.scheduling.classes import CLASSES

_FACTOR = 10
_NUM_STREAMS = 48
_IDLE_RATE = 2.0
_RECOVERY_S = 5.0
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


def load_of(
    maker: RequestMaker, arrivals: Callable[[], Arrivals], seconds: float, drain_s: float
) -> Load:
    """Return a load of interactive requests."""

    def make(number: int) -> PlannedRequest:
        return replace(maker.make(number), latency_class="interactive")

    return Load(arrivals, make, 0.0, seconds, drain_s)


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


async def measure(url: str, maker: RequestMaker, seconds: float) -> dict[str, float]:
    """Fill, flood, and look at what comes after."""
    pid = pid_of("scheduler", url)
    rng = random.Random(1)
    async with connected(url, "bench-flood") as bus:
        client = LoadClient(bus)
        full = await client.run(
            load_of(maker, lambda: StreamArrivals(_NUM_STREAMS, 10.0, 1.0, 0.05, rng), 10.0, 30.0),
            "full",
        )
        served = [each for each in full.samples if each.is_served]
        capacity = len(served) / max(each.ended_s or 0.0 for each in served)
        idle = load_of(maker, lambda: ScheduledArrivals(even_times(_IDLE_RATE, 5.0)), 5.0, 10.0)
        before_ms = first_tokens_ms(await client.run(idle, "before"))
        before_mib, seen = memory_mib(pid), list[float]()
        times = poisson_times(_FACTOR * capacity, seconds, rng)
        times += [seconds + each for each in even_times(_IDLE_RATE, _RECOVERY_S + 5.0)]
        watching = asyncio.create_task(watch_memory(pid, seen))
        began = time.monotonic()
        flood = await client.run(
            load_of(maker, lambda: ScheduledArrivals(times), seconds + _RECOVERY_S + 5.0, 20.0),
            "flood",
        )
        took_s = time.monotonic() - began
        watching.cancel()
    answered = first_tokens_ms(flood)
    after_ms = first_tokens_ms(flood, seconds + _RECOVERY_S)
    refused = refused_after_ms(flood)
    queued = sorted(each.queue_ms for each in flood.samples if each.queue_ms is not None)
    others = [each for each in flood.samples if not each.is_served and not _is_refused(each)]
    target_ms = 1000 * CLASSES["interactive"].ttft_target_s
    return {
        "served a second, closed loop": capacity,
        "requests": len(flood.samples),
        "served": sum(each.is_served for each in flood.samples),
        "refused": len(refused),
        "neither": len(others),
        "refusal p50 (ms)": percentile(refused, 50),
        "refusal p99 (ms)": percentile(refused, 99),
        "first token p50 (ms)": percentile(answered, 50),
        "first token p99 (ms)": percentile(answered, 99),
        "of it in the queue, p50 (ms)": percentile(queued, 50),
        "share of first tokens in time": sum(each <= target_ms for each in answered)
        / len(answered),
        "first token before, p50 (ms)": percentile(before_ms, 50),
        "first token five seconds after, p50 (ms)": percentile(after_ms, 50),
        "scheduler before (MiB)": before_mib,
        "scheduler at most (MiB)": max(seen),
        "load generator, share of a core": flood.client_cpu_share,
        "seconds": took_s,
    }


def main() -> None:
    """Measure, print, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of the flood")
    parser.add_argument("--engine", default="auto", choices=("auto", "fake"))
    parser.add_argument("--format", default="auto", help="of the weights")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    is_fake = options.engine == "fake"
    shapes = SyntheticShapes(Lengths(128, 32), 0.5, 1)
    maker = RequestMaker(shapes, 259 if is_fake else 40_000, 1, {}, {})
    common = ["--engine", options.engine, "--format", options.format]
    if is_fake:
        common.append("--test-mode")
        os.environ |= {"SLIPSTREAM_FAKE_STEP_MS": "10", "SLIPSTREAM_FAKE_ROW_US": "100"}
    with running_stack(*common) as url:
        found = asyncio.run(measure(url, maker, options.seconds))
    for name, value in found.items():
        print(f"{name:<45}{value:12.2f}")
    if options.json:
        written = {
            "machine": describe_machine(),
            "settings": {name: getattr(options, name) for name in ("seconds", "engine", "format")},
            "results": found,
        }
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
