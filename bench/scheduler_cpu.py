"""
Measure how much of a core the schedulers take at a steady rate of requests, all of them together.

    python bench/scheduler_cpu.py --rate 200 --tokens 100 --seconds 20

On the fake engine, whose steps take next to nothing, so that nobody else is the limit; its tokens
are bytes, so a letter of a prompt is one. Requests come at even intervals whatever becomes of them.
Traces go where OTEL_EXPORTER_OTLP_ENDPOINT says, one in ten of them.
"""

import argparse
import asyncio
import os
import random
import time
from pathlib import Path

from results import make_parser, write_results
from stack import connected, running_stack

from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.generate import Completion, GenerateRequest

_TICKS = os.sysconf("SC_CLK_TCK")
_ANSWER_S = 30.0
_WARM_S = 3.0
_CPU_FIELDS = slice(11, 13)  # of /proc/PID/stat behind the name: user and system time
_LETTERS = "etaoin shrdlu"
# Where nothing else is said.
_SAMPLED = {
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.1",
}
_QUICK = {"SLIPSTREAM_FAKE_STEP_MS": "0.5", "SLIPSTREAM_FAKE_ROW_US": "0"}


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[_CPU_FIELDS])) / _TICKS


def pids_of(role: str, url: str) -> list[int]:
    """Return the processes of a role of the stack at an address: one may stand by for another."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().split(b"\0")
            environment = (directory / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if role.encode() in command and f"SLIPSTREAM_NATS_URL={url}".encode() in environment:
            found.append(int(directory.name))
    if not found:
        raise SystemExit(f"no {role} of {url} is running")
    return found


def pid_of(role: str, url: str) -> int:
    """Return the process of a role that has only one."""
    (pid,) = pids_of(role, url)
    return pid


async def load(bus: NatsBus, rate: float, num_tokens: int, seconds: float) -> tuple[int, int]:
    """Ask at a steady rate; return how many were asked and served."""
    rng = random.Random(0)
    num_served = 0

    async def ask() -> None:
        nonlocal num_served
        request = GenerateRequest(
            prompt="".join(rng.choice(_LETTERS) for _ in range(num_tokens)),
            max_tokens=4,
            ignore_eos=True,
        )
        answer = await bus.request(GENERATE.subject(), encode(request), timeout_s=_ANSWER_S)
        num_served += isinstance(decoder_of(ClientAnswer).decode(answer.payload), Completion)

    began = time.monotonic()
    tasks: list[asyncio.Task[None]] = []
    while (elapsed := time.monotonic() - began) < seconds:
        while len(tasks) < elapsed * rate:
            tasks.append(asyncio.create_task(ask()))
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    return len(tasks), num_served


async def measure(url: str, options: argparse.Namespace) -> dict[str, float]:
    """Warm up, load, print; return the share of a core that each service took, in percent."""
    pids = {role: pids_of(role, url) for role in ("scheduler", "prefill", "decode", "kv", "draft")}
    async with connected(url, "bench-load") as bus:
        await load(bus, options.rate, options.tokens, _WARM_S)
        before = {role: sum(map(cpu_s, each)) for role, each in pids.items()}
        began = time.monotonic()
        num_asked, num_served = await load(bus, options.rate, options.tokens, options.seconds)
        elapsed_s = time.monotonic() - began
    print(f"{num_served} of {num_asked} served in {elapsed_s:.1f} s")
    shares = {}
    for role, each in pids.items():
        taken = sum(map(cpu_s, each)) - before[role]
        shares[role] = 100 * taken / elapsed_s
        per_request = 1e6 * taken / max(1, num_served)
        print(f"{role:<10}{shares[role]:6.1f} % of a core{per_request:9.0f} us a request")
    return shares


def main() -> None:
    """Measure, print, write the file."""
    parser = make_parser(__doc__)
    parser.add_argument("--rate", type=float, default=200, help="a second (default: 200)")
    parser.add_argument("--tokens", type=int, default=100, help="of a prompt (default: 100)")
    parser.add_argument("--seconds", type=float, default=20, help="default: 20")
    options = parser.parse_args()
    variables = {**_SAMPLED, **os.environ, **_QUICK}
    with running_stack("--engine", "fake", "--test-mode", variables=variables) as url:
        shares = asyncio.run(measure(url, options))
    write_results(options, shares, "% of a core")


if __name__ == "__main__":
    main()
