"""
Measure what the gateway takes of a core and of memory, and what it adds to a stream.

    python bench/gateway.py --rounds 5 --seconds 10 --json gateway.json

On the fake engine, whose steps last as long as they are told, so that tokens come at a steady rate.
Parts: `tokens`, 2,000 streamed tokens a second (bars: 40 % of a core; half of the first bytes leave
within 3 ms of their frame's arrival); `idle`, 1,000 streams that wait in the
queue; `slow`, 500 readers that hardly read beside 16 that do (who must not notice).
"""

import argparse
import asyncio
import itertools
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flood import memory_mib
from http_readers import Reader, SlowReader, gaps_ms, num_events, open_readers
from results import make_parser, settings_of, write
from scheduler_cpu import cpu_s, pid_of
from stack import MeteredStack, metered_stack

from slipstream.shared.measure.estimate import Estimate, report, table
from slipstream.shared.measure.load.summary import percentile

_TOKENS = 2000  # a second
_NUM_STREAMS = 64
_NUM_IDLE = 1000
_NUM_SLOW, _NUM_FAST = 500, 16
_SLOW_STEP_MS = 200
_BEGIN_S = 120.0
_SETTLE_S = 2.0
_FILL_S = 90.0  # in which the buffers of slow readers have to be full
_BUFFER_BYTES = 8192  # of a stream in the gateway: small, or filling it took minutes
_FIRST_FRAME = "http_first_frame_seconds_bucket"
_UNIT = "as named"
_OPTIONS = (
    *("--test-mode", "--engine", "fake", "--route", "local"),
    *("--prefill", "0", "--draft", "0", "--gateway", "1"),
)
_BODY: dict[str, Any] = {  # Any: JSON
    "prompt": "Once",
    "temperature": 0,
    "ignore_eos": True,
    "speculation": "off",
    "latency_class": "batch",  # which waits as long as it takes
    "deadline_ms": 3_600_000,
}

Figures = dict[str, float]


@dataclass(frozen=True)
class Usage:
    """What a process took between two looks at it."""

    cpu_s: float
    mib: float


def look(pid: int) -> Usage:
    """Return what a process has taken so far, and holds."""
    return Usage(cpu_s(pid), memory_mib(pid))


def variables_of(*, step_ms: float, seats: int, num_waiting: int = 4096) -> Mapping[str, str]:
    """Return the settings of a stack whose steps last so long."""
    return {
        "SLIPSTREAM_FAKE_STEP_MS": str(step_ms),
        "SLIPSTREAM_FAKE_ROW_US": "0",
        "SLIPSTREAM_SEATS": str(seats),
        "SLIPSTREAM_PROMPT_STEP_MS": "60000",  # a long step must not make the worker careful
        "SLIPSTREAM_MAX_NUM_WAITING": str(num_waiting),
        "SLIPSTREAM_KV_MEMORY": "64MiB",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.1",
    }


def median_of_buckets(before: Figures, after: Figures, name: str) -> float:
    """Return the median of what a histogram counted between two looks, within its bucket."""
    counted = sorted(
        (float(key.removeprefix(name)), after[key] - before.get(key, 0.0))
        for key in after
        if key.startswith(name + " ")
    )
    if not counted or not counted[-1][1]:
        raise SystemExit(f"{name} counted nothing in that time; try more --seconds")
    half, low, num_below = counted[-1][1] / 2, 0.0, 0.0
    for bound, number in counted:
        if number >= half:
            return low + (bound - low) * (half - num_below) / (number - num_below)
        low, num_below = bound, number
    raise AssertionError("the last bucket holds all of them")


async def tokens_part(seconds: float) -> Figures:
    """2,000 tokens a second to 64 readers, answers of 50 to 150 tokens one after the other."""
    variables = variables_of(step_ms=1000 * _NUM_STREAMS / _TOKENS, seats=_NUM_STREAMS + 4)
    with metered_stack(*_OPTIONS, variables=variables) as stack:
        body = {**_BODY, **await _one_letter(stack), "max_tokens": 100}
        readers = await open_readers(stack.http_url, body, _NUM_STREAMS, spread=50)
        await _all_begun(readers)
        return await _tokens_window(stack, readers, seconds)


async def _tokens_window(stack: MeteredStack, readers: Sequence[Reader], seconds: float) -> Figures:
    pid = pid_of("gateway", stack.url)
    metrics = {name: await asyncio.to_thread(stack.metrics, name) for name in ("gateway", "decode")}
    before, events = look(pid), num_events(readers)
    began_s = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    after, took_s = look(pid), asyncio.get_running_loop().time() - began_s
    events = num_events(readers) - events
    later = {name: await asyncio.to_thread(stack.metrics, name) for name in metrics}
    _close(readers)
    tokens = "output_tokens_total"
    num_tokens = later["decode"][tokens] - metrics["decode"][tokens]
    share = (after.cpu_s - before.cpu_s) / took_s
    first_s = median_of_buckets(metrics["gateway"], later["gateway"], _FIRST_FRAME)
    return {
        "tokens: a second": num_tokens / took_s,
        "tokens: events a second": events / took_s,
        "tokens: gateway, % of a core": 100 * share,
        "tokens: gateway, % of a core at 2,000 a second": 100
        * share
        * _TOKENS
        * took_s
        / num_tokens,
        "tokens: first frame to first byte, p50 (ms)": 1000 * first_s,
    }


async def idle_part(seconds: float) -> Figures:
    """1,000 streams that wait in the queue behind a step that takes very long."""
    with metered_stack(*_OPTIONS, variables=variables_of(step_ms=5000, seats=4)) as stack:
        pid = pid_of("gateway", stack.url)
        empty = look(pid)
        readers = await open_readers(stack.http_url, {**_BODY, "max_tokens": 2000}, _NUM_IDLE)
        await _until_running(stack, _NUM_IDLE)
        await asyncio.sleep(_SETTLE_S)
        before = look(pid)
        await asyncio.sleep(seconds)
        after = look(pid)
        held = sum(not (reader.is_lost or reader.refusal) for reader in readers)
        _close(readers)
    return {
        "idle: streams held": held,
        "idle: gateway, % of a core": 100 * (after.cpu_s - before.cpu_s) / seconds,
        "idle: KiB a stream": 1024 * (after.mib - empty.mib) / _NUM_IDLE,
    }


async def slow_part(seconds: float) -> Figures:
    """16 readers beside 500 quick ones, then beside 500 that take a tenth of what there is."""
    variables = variables_of(step_ms=_SLOW_STEP_MS, seats=_NUM_SLOW + _NUM_FAST + 4)
    variables = {**variables, "SLIPSTREAM_STREAM_BUFFER_BYTES": str(_BUFFER_BYTES)}
    with metered_stack(*_OPTIONS, variables=variables) as stack:
        letter = await _one_letter(stack)
        # 500 others run in both windows, so that only their slowness differs.
        long = {**_BODY, **letter, "max_tokens": 4000, "logprobs": 20}
        fast = await open_readers(stack.http_url, {**_BODY, **letter, "max_tokens": 500}, _NUM_FAST)
        quick = await open_readers(stack.http_url, long, _NUM_SLOW)
        await _all_begun([*fast, *quick])
        without = await _slow_window(stack, fast, seconds)
        _close(quick)
        slow = await open_readers(stack.http_url, long, _NUM_SLOW, SlowReader)
        await _all_begun(slow)
        await _until_full(stack)
        beside = await _slow_window(stack, fast, seconds)
        held = sum(not reader.is_lost for reader in slow)
        _close([*fast, *slow])
    if not beside.num_dropped:
        raise SystemExit("slow: every frame found room, so no reader was slow; try more --seconds")
    return {
        "slow: readers held": held,
        "slow: p99 gap of the fast, without (ms)": percentile(without.gaps_ms, 99),
        "slow: p99 gap of the fast, beside (ms)": percentile(beside.gaps_ms, 99),
        "slow: gateway, % of a core, without": 100 * without.share,
        "slow: gateway, % of a core, beside": 100 * beside.share,
        "slow: frames that found no room, a second": beside.num_dropped / seconds,
        "slow: KiB a slow reader": 1024 * (beside.mib - without.mib) / _NUM_SLOW,
    }


@dataclass(frozen=True)
class _SlowWindow:
    gaps_ms: list[float]  # of the fast
    share: float  # of a core, by the gateway
    mib: float
    num_dropped: float


async def _slow_window(stack: MeteredStack, fast: Sequence[Reader], seconds: float) -> _SlowWindow:
    pid = pid_of("gateway", stack.url)
    await asyncio.sleep(_SETTLE_S)
    before, dropped = look(pid), await _num_dropped(stack)
    gaps_ms(fast)
    began_s = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    gaps = gaps_ms(fast)
    took_s = asyncio.get_running_loop().time() - began_s
    after = look(pid)
    share = (after.cpu_s - before.cpu_s) / took_s
    return _SlowWindow(gaps, share, after.mib, await _num_dropped(stack) - dropped)


async def _num_dropped(stack: MeteredStack) -> float:
    found = await asyncio.to_thread(stack.metrics, "gateway")
    return found.get("http_dropped_frames_total", 0.0)


async def _until_full(stack: MeteredStack) -> None:
    """Return when frames find no room, about one a slow reader."""
    deadline_s = asyncio.get_running_loop().time() + _FILL_S
    while await _num_dropped(stack) < _NUM_SLOW:
        if asyncio.get_running_loop().time() >= deadline_s:
            return
        await asyncio.sleep(0.5)


async def _one_letter(stack: MeteredStack) -> dict[str, Any]:
    """Return the fields that have the engine say one letter for ever: each token is an event."""
    answer = await asyncio.to_thread(stack.post, "/tokenize", {"prompt": "a"})
    return {"logit_bias": {str(answer["tokens"][-1]): 100}}


async def _all_begun(readers: Sequence[Reader]) -> None:
    async with asyncio.timeout(_BEGIN_S):
        await asyncio.gather(*(reader.has_begun.wait() for reader in readers))
    if refusal := next((reader.refusal for reader in readers if reader.refusal), b""):
        raise SystemExit(f"a stream was refused: {refusal.decode()}")
    await asyncio.sleep(_SETTLE_S)


async def _until_running(stack: MeteredStack, number: int) -> None:
    async with asyncio.timeout(_BEGIN_S):
        while await asyncio.to_thread(_num_running, stack) < number:  # noqa: ASYNC110 - elsewhere
            await asyncio.sleep(0.2)


def _num_running(stack: MeteredStack) -> float:
    return stack.metrics("gateway")["http_running"]


def _close(readers: Sequence[Reader]) -> None:
    for reader in readers:
        reader.close()


PARTS = {"tokens": tokens_part, "idle": idle_part, "slow": slow_part}


def _samples(options: argparse.Namespace) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for number, part in itertools.product(range(options.rounds), options.parts.split(",")):
        print(f"==> round {number + 1} of {options.rounds}, {part}", file=sys.stderr)
        for name, value in asyncio.run(PARTS[part](options.seconds)).items():
            found[name].append(value)
    return found


def main() -> None:
    """Measure, print, write the file."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a window")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of: %(default)s")
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    estimates = [Estimate.of(name, values) for name, values in _samples(options).items()]
    print(table(estimates, _UNIT))
    write(options, report(estimates, settings_of(options), _UNIT))


if __name__ == "__main__":
    main()
