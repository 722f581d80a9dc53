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
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

from stack import connected, running_stack
from streams import answers, request, streaming

from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.messages.common import Route

NUM_STREAMS = 16
NUM_PROMPT_TOKENS = 4000
ROUTES: tuple[Route, ...] = ("local", "remote")


async def prompts_for(bus: NatsBus, rng: random.Random, route: Route, seconds: float) -> float:
    """Send prompts one after another for a time; return prompt tokens a second."""
    began_s = time.perf_counter()
    num_prompts = 0
    while time.perf_counter() - began_s < seconds:
        async for _ in answers(bus, request(rng, NUM_PROMPT_TOKENS, route, 1)):
            pass
        num_prompts += 1
    return num_prompts * NUM_PROMPT_TOKENS / (time.perf_counter() - began_s)


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
            async with streaming(bus, rng, NUM_STREAMS) as streams:
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
