"""
Measure continuous against static batching, on the lengths of a trace of real requests.

    python bench/batching.py --trace azure_conv_2023.csv --rounds 3 --json batching.json

All ways run the same requests on the same stack, with as many in flight as there are seats.
Continuous: a seat that is free takes the next request, which joins the running batch. Static: a
group takes all seats, and the next one waits for its longest answer. That is static batching at its
best: nothing is padded, and who has ended costs the steps of its group nothing more. Padded is the
classic kind, by longer requests: every prompt and every answer is as long as the longest of its
group, and only what the trace asks for counts. Prompts alone end with one token each: what batching
of any kind can't save.

The requests are a random sample of the trace, in its order. All lengths are multiplied by one
factor, so that the 99th percentile of prompt and answer together is `--max-tokens`; what is longer
is cut to that, and nothing is shorter than a token. Prompts are random tokens, answers are greedy
and as long as the trace says. Each round takes every way, the next round in the opposite order;
static and continuous must give the same tokens.
"""

import argparse
import asyncio
import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batch_model import limits
from batching_run import Bench, Run
from batching_ways import Seats, Way, continuous, padded, prompts_alone, static
from stack import MeteredStack, connected, metered_stack
from trace_client import TraceRequest

from slipstream.shared.config import DecodeConfig
from slipstream.shared.measure.estimate import Estimate, describe_machine
from slipstream.shared.measure.load.traces import TraceError, fit, fitting_factor, read_trace

_WAYS: dict[str, Way] = {
    "static": static,
    "continuous": continuous,
    "padded": padded,
    "prompts": prompts_alone,
}
_SETTINGS = ("rounds", "batch", "max_tokens", "route", "format", "kv_memory", "seed")

Runs = Mapping[str, Sequence[Run]]
Figures = dict[str, float]


async def measure(bench: Bench, requests: Sequence[TraceRequest], num_rounds: int) -> Runs:
    """Take every way once a round, after a group that warms up."""
    _say("warming up")
    await bench.run(static, requests[: bench.seats.number])
    runs: dict[str, list[Run]] = {name: [] for name in _WAYS}
    order = list(_WAYS)
    for number in range(num_rounds):
        for name in order:
            _say(f"round {number + 1} of {num_rounds}, {name}")
            runs[name].append(await bench.run(_WAYS[name], requests))
        order.reverse()
    _check_answers([*runs["static"], *runs["continuous"]])
    return runs


def _check_answers(runs: Sequence[Run]) -> None:
    """Hold every run to the tokens of the first: whatever the batch, they are the same."""
    for run in runs:
        for number, (first, answer) in enumerate(zip(runs[0].answers, run.answers, strict=True)):
            if first.token_ids != answer.token_ids:
                raise RuntimeError(f"request {number} got other tokens in another batch")


def _estimates(runs: Sequence[Run]) -> list[Estimate]:
    of_runs = [run.figures for run in runs]
    return [Estimate.of(name, [figures[name] for figures in of_runs]) for name in of_runs[0]]


def _ratios(runs: Runs) -> list[Estimate]:
    """Return how many times as fast continuous batching is: in all, and beyond the prompts."""
    seconds = {name: [run.seconds for run in of_way] for name, of_way in runs.items()}
    fast, prompts = seconds["continuous"], seconds["prompts"]

    def beyond_prompts(name: str) -> list[float]:
        return [each - least for each, least in zip(seconds[name], prompts, strict=True)]

    return [
        Estimate.of_ratio("continuous / static", seconds["static"], fast),
        Estimate.of_ratio("continuous / padded", seconds["padded"], fast),
        Estimate.of_ratio(
            "/ static, beyond prompts", beyond_prompts("static"), beyond_prompts("continuous")
        ),
    ]


def _requests(options: argparse.Namespace) -> tuple[list[TraceRequest], Figures]:
    """Return what is asked for, and how it came from the trace. Raises TraceError."""
    trace = read_trace(options.trace)
    fitted = fit(trace, options.max_tokens)
    rng = random.Random(options.seed)
    places = sorted(rng.sample(range(len(fitted)), min(options.num_requests, len(fitted))))
    requests = [TraceRequest.of(fitted[place], rng) for place in places]
    lengths = [request.lengths for request in requests]
    return requests, {
        "requests of the trace": len(trace),
        "requests": len(requests),
        "lengths times": fitting_factor(trace, options.max_tokens),
        "prompt tokens": sum(each.num_prompt_tokens for each in lengths),
        "output tokens": sum(each.num_output_tokens for each in lengths),
        "longest output": max(each.num_output_tokens for each in lengths),
    }


async def _run(
    stack: MeteredStack, requests: Sequence[TraceRequest], options: argparse.Namespace
) -> Runs:
    async with connected(stack.url, "bench-batching") as bus:
        bench = Bench(stack, bus, Seats(options.batch, options.max_tokens))
        return await measure(bench, requests, options.rounds)


def _print(parts: Mapping[str, Figures], runs: Runs) -> None:
    for title, figures in parts.items():
        print(title)
        for name, value in figures.items():
            print(f"  {name:<26}{value:12,.{0 if isinstance(value, int) else 2}f}")
    print("{:<28}".format("medians") + "".join(f"{name:>12}" for name in runs))
    for row in zip(*map(_estimates, runs.values()), strict=True):
        print(f"  {row[0].name:<26}" + "".join(f"{each.median:12,.2f}" for each in row))
    for each in _ratios(runs):
        print(f"{each.name:<28}{each.median:12,.2f}  ({each.low:.2f} to {each.high:.2f})")


def _write(path: Path, parts: Mapping[str, Figures], runs: Runs, settings: dict[str, Any]) -> None:
    # Any: settings of every kind
    of_ways = {name: _estimates(of_way) for name, of_way in runs.items()}
    written = {
        "machine": describe_machine(),
        "settings": settings,
        **parts,
        "ways": {
            name: {each.name: {"median": each.median, "samples": each.samples} for each in of}
            for name, of in of_ways.items()
        },
        "ratios": {each.name: [each.median, each.low, each.high] for each in _ratios(runs)},
    }
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return all that the figures depend on. Any: settings of every kind."""
    variables = {name: each for name, each in os.environ.items() if name.startswith("SLIPSTREAM_")}
    given = {name: getattr(options, name) for name in _SETTINGS}
    return {"trace": options.trace.name, **given, "environment": variables}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--trace", type=Path, required=True, help="of Azure (CSV) or Mooncake")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--num-requests", type=int, default=64, help="default: 64")
    parser.add_argument("--batch", type=int, default=16, help="seats (default: 16)")
    parser.add_argument("--max-tokens", type=int, default=1024, help="default: 1024")
    parser.add_argument("--route", default="auto", help="where prompts are computed")
    # As the operations page advises where many are served at once.
    parser.add_argument("--format", default="int8", help="of the weights (default: int8)")
    parser.add_argument("--kv-memory", default="2GiB", help="default: 2GiB")
    parser.add_argument("--seed", type=int, default=1, help="of the sample and the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    if not 1 <= options.batch <= DecodeConfig.num_seats:
        parser.error(f"--batch {options.batch}: a decode worker has {DecodeConfig.num_seats} seats")
    if min(options.rounds, options.num_requests) < 1 or options.max_tokens <= 1:
        parser.error("one round, one request and two tokens are the least")
    return options


def main() -> None:
    """Measure, print, write the file."""
    options = _arguments()
    try:
        requests, sample = _requests(options)
    except TraceError as error:
        raise SystemExit(f"Error: {error}") from error
    lengths = [request.lengths for request in requests]
    parts = {
        "sample of the trace": sample,
        "what the lengths alone allow": limits(lengths, options.batch, options.max_tokens),
    }
    stack_options = [f"--{name}={getattr(options, name)}" for name in ("format", "route")]
    with metered_stack(*stack_options, "--kv-memory", options.kv_memory) as stack:
        runs = asyncio.run(_run(stack, requests, options))
    _print(parts, runs)
    if options.json:
        _write(options.json, parts, runs, _settings(options))


def _say(line: str) -> None:
    print(f"==> {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
