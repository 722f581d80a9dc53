"""
Measure prefill on one host and decode on another, over a link as it is and one of a stated rate.

    python bench/two_hosts.py --rounds 15 --rate 1gbit --json two_hosts.json

As root only: the hosts are network namespaces. Prompts that nobody has seen are computed by the far
host; their KV travels while later chunks are computed. The figures: prefill and hand-over, in
milliseconds, beside what the bytes alone take on the link.
"""

import argparse
import asyncio
import json
import random
import signal
import statistics
import sys
from pathlib import Path

from host_network import HostNetwork, host_network, why_not

from slipstream.services.cli.bench_hosts import HostPlan, Hosts, hosts_directory
from slipstream.services.cli.console import resolve_cache_dir
from slipstream.services.cli.prefix_bench import Desk
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.ids import WorkerId
from slipstream.shared.lifecycle import read_status
from slipstream.shared.measure.estimate import Estimate, report, table
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.reports import WorkerRecord

_UNSHAPED = "as it is"
_GIGABIT = 1e9
_RATES = {"1gbit": _GIGABIT, "100mbit": _GIGABIT / 10, "10gbit": 10 * _GIGABIT}
_BLOCK_TOKENS = 32


def plans(network: HostNetwork) -> list[HostPlan]:
    """Return what runs on each side of the link."""
    near, far = network.near, network.far
    return [
        HostPlan(
            name="near",
            roles=("kv", "scheduler", "decode"),
            enter=near.enter,
            transfer_listen=f"{near.address}:0",
        ),
        HostPlan(
            name="far",
            roles=("kv", "prefill"),
            enter=far.enter,
            transfer_listen=f"{far.address}:0",
        ),
    ]


async def num_arena_blocks(bus: NatsBus) -> int:
    """Return how many blocks lie in each host's arena, the null block included."""
    for payload in (await bus.registry().entries()).values():
        record = decoder_of(WorkerRecord).decode(payload)
        if record.role == "kv":
            return record.num_blocks + 1
    raise SystemExit("no KV manager is there")


async def measure(
    hosts: Hosts, network: HostNetwork, arguments: argparse.Namespace
) -> tuple[dict[str, dict[str, list[float]]], int]:
    """Return samples by link and figure, in turn a round each; and the blocks of an arena."""
    bus = await NatsBus.connect(f"nats://{network.outside_address}:{hosts.port}", "bench")
    status = read_status(hosts.one("near-decode").status_file)
    assert status is not None, "it is ready"
    desk = Desk(bus, WorkerId(status.worker_id), random.Random(1))
    found: dict[str, dict[str, list[float]]] = {}
    try:
        for number in range(-1, arguments.rounds):
            for link in (_UNSHAPED, arguments.rate):
                network.unshape()
                if link != _UNSHAPED:
                    network.shape(link)
                answer = await desk.ask(desk.prompt(arguments.tokens), "remote")
                if number < 0:
                    continue
                samples = found.setdefault(link, {"prefill": [], "hand-over": [], "both": []})
                timings = answer.timings
                samples["prefill"].append(timings.prefill_ms)
                samples["hand-over"].append(timings.hand_over_ms)
                samples["both"].append(timings.prefill_ms + timings.hand_over_ms)
        return found, await num_arena_blocks(bus)
    finally:
        await bus.close()


def main() -> None:
    """Measure, print, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=512, help="of a prompt")
    parser.add_argument("--rate", choices=sorted(_RATES), default="1gbit", help="of the slow link")
    parser.add_argument("--format", default="auto", help="of the weights")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    if (reason := why_not()) is not None:
        sys.exit(f"two_hosts.py: {reason}")
    # An end from outside goes through `finally` too: namespaces outlive their maker.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    variables = {"CACHE_DIR": resolve_cache_dir(None), "FORMAT": arguments.format}
    with (
        host_network() as network,
        hosts_directory() as place,
        Hosts(place, plans(network), variables, network.near.address) as hosts,
    ):
        found, num_blocks = asyncio.run(measure(hosts, network, arguments))
        (arena,) = (place / "near").glob("arena.*")
        block_bytes = arena.stat().st_size // num_blocks
    _show(found, block_bytes * -(-arguments.tokens // _BLOCK_TOKENS), arguments)


def _show(
    found: dict[str, dict[str, list[float]]], num_bytes: int, arguments: argparse.Namespace
) -> None:
    estimates = [
        Estimate.of(f"{name}, link {link}", samples)
        for link, figures in found.items()
        for name, samples in figures.items()
    ]
    link_ms = num_bytes * 8 / _RATES[arguments.rate] * 1000
    slow = found[arguments.rate]
    ratio = Estimate.of_ratio("both / prefill, slow link", slow["both"], slow["prefill"])
    bound_ms = max(1.25 * statistics.median(slow["prefill"]), 1.05 * link_ms)
    print(table(estimates))
    print(table([ratio], "ratio"))
    print(
        f"{num_bytes / 1e6:.2f} MB take {link_ms:.1f} ms at {arguments.rate}; the bound, without "
        f"its chunk, is {bound_ms:.1f} ms"
    )
    if arguments.json:
        settings = {"tokens": arguments.tokens, "rate": arguments.rate, "bytes": num_bytes}
        arguments.json.write_text(json.dumps(report([*estimates, ratio], settings), indent=1))


if __name__ == "__main__":
    main()
