"""What `slipstream bench prefix` does with its options."""

import asyncio
import contextlib
import json
import random
from collections.abc import Mapping

import typer

from slipstream.services.cli import prefix_bench_report as report
from slipstream.services.cli.bench_hosts import Hosts
from slipstream.services.cli.bench_run import parse_numbers
from slipstream.services.cli.console import progress, resolve_cache_dir
from slipstream.services.cli.measure_options import PrefixBenchOptions
from slipstream.services.cli.name_lists import parse_names
from slipstream.services.cli.prefix_bench import (
    PLANES,
    SHARED_MEMORY,
    HandOverSamples,
    HitSamples,
    measure_hand_overs,
    measure_hits,
    open_desk,
    running_hosts,
)


def run_prefix_bench(options: PrefixBenchOptions) -> None:
    """Measure; print tables, write the file. Raises ConfigurationError, HostsError."""
    planes = parse_names(options.planes, "--planes", tuple(PLANES))
    lengths = parse_numbers(options.prompts, "--prompts")
    variables = {
        "MODEL": options.model,
        "CACHE_DIR": resolve_cache_dir(options.cache_dir),
        "FORMAT": options.weight_format,
    }
    # The first stack serves the cached prefixes, too.
    ordered = list(dict.fromkeys([SHARED_MEMORY, *planes]))
    with running_hosts(ordered, variables) as hosts:
        hits, hand_overs = asyncio.run(_measure(hosts, lengths, options.rounds))
    hit_rows = [report.hit_row(each) for each in hits]
    hand_over_rows = [report.hand_over_row(each) for each in hand_overs]
    typer.echo(report.hit_table(hit_rows))
    typer.echo(f"\n{report.hand_over_table(hand_over_rows)}")
    if options.json_file is not None:
        settings = {
            "model": options.model,
            "format": options.weight_format,
            "rounds": options.rounds,
            "planes": ordered,
        }
        written = report.as_json(hit_rows, hand_over_rows, settings)
        options.json_file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


async def _measure(
    hosts: Mapping[str, Hosts], lengths: list[int], num_rounds: int
) -> tuple[list[HitSamples], list[HandOverSamples]]:
    rng = random.Random(1)  # noqa: S311 - prompts, no secret
    async with contextlib.AsyncExitStack() as stack:
        desks = {}
        for plane, each in hosts.items():
            desks[plane] = await open_desk(each, rng)
            stack.push_async_callback(desks[plane].bus.close)
        hits = await measure_hits(desks[SHARED_MEMORY], lengths, num_rounds, progress)
        hand_overs = await measure_hand_overs(desks, lengths, num_rounds, progress)
    return hits, hand_overs
