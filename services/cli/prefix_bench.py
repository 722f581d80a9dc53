"""What `slipstream bench prefix` measures: first tokens with and without a cached prefix."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.services.cli.bench_hosts import HostPlan, Hosts, hosts_directory
from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import DECODE
from slipstream.shared.client import answers
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.lifecycle import read_status
from slipstream.shared.messages.common import Route
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import ReportRequest, WorkerReport
from slipstream.shared.model.cache_directory import Report

NUM_FRESH_TOKENS = 28  # of the prompt that a hit is compared with
_FIRST_TOKEN_ID, _END_TOKEN_ID = 1000, 40_000  # words, in every vocabulary of ours
_NUM_OUTPUT_TOKENS = 8
_ANSWER_S = 120.0
_IDLE_S = 0.05  # after an answer its blocks are committed and released

# What runs where, by the plane on which a hand-over's KV travels.
_ONE_HOST = (HostPlan(name="near", roles=("kv", "scheduler", "prefill", "decode")),)
_TWO_HOSTS = (
    HostPlan(name="near", roles=("kv", "scheduler", "decode")),
    HostPlan(name="far", roles=("kv", "prefill")),
)
SHARED_MEMORY = "shared_memory"
PLANES: Mapping[str, Sequence[HostPlan]] = {
    SHARED_MEMORY: _ONE_HOST,
    "tcp": _TWO_HOSTS,
    "nats": _TWO_HOSTS,
}


class WrongTokensError(SlipstreamError):
    """A cached prefix changed an answer."""

    code = "wrong_tokens"


@dataclass
class HitSamples:
    """One prompt length: cold, asked again, and a short fresh prompt, in each round."""

    num_prompt_tokens: int
    cold_ms: list[float] = field(default_factory=list)
    hit_ms: list[float] = field(default_factory=list)
    fresh_ms: list[float] = field(default_factory=list)
    num_cached_tokens: list[int] = field(default_factory=list)


@dataclass
class HandOverSamples:
    """One prompt length on one plane; a round trip is a message that does nothing."""

    plane: str
    num_prompt_tokens: int
    hand_over_ms: list[float] = field(default_factory=list)
    round_trip_ms: list[float] = field(default_factory=list)
    prefill_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)


@dataclass
class Desk:
    """A stack, as its client sees it."""

    bus: NatsBus
    decode_worker_id: WorkerId
    rng: random.Random

    def prompt(self, num_tokens: int) -> PackedInts:
        """Return tokens that nobody has seen."""
        return PackedInts(
            self.rng.randrange(_FIRST_TOKEN_ID, _END_TOKEN_ID) for _ in range(num_tokens)
        )

    async def ask(self, prompt: PackedInts, route: Route = "auto") -> answers.Answer:
        """Ask for a few tokens. Raises RequestFailedError."""
        request = GenerateRequest(
            prompt_token_ids=prompt,
            temperature=0,
            ignore_eos=True,
            max_tokens=_NUM_OUTPUT_TOKENS,
            route=route,
            speculation="off",
        )
        answer = await answers.complete(self.bus, request, timeout_s=_ANSWER_S)
        await asyncio.sleep(_IDLE_S)
        return answer

    async def round_trip_ms(self) -> float:
        """Return how long the decode worker takes to answer a message that asks for little."""
        started = time.perf_counter()
        _: WorkerReport = await call(
            self.bus, DECODE, ReportRequest(), timeout_s=5, worker_id=self.decode_worker_id
        )
        return (time.perf_counter() - started) * 1000


async def measure_hits(
    desk: Desk, lengths: Sequence[int], num_rounds: int, report: Report
) -> list[HitSamples]:
    """Ask for each prompt twice. Raises WrongTokensError when the answers differ."""
    found = [HitSamples(length) for length in lengths]
    for number in range(-1, num_rounds):
        report(f"cached prefixes, round {number + 1} of {num_rounds}")
        for samples in found:
            prompt = desk.prompt(samples.num_prompt_tokens)
            cold, hit = await desk.ask(prompt), await desk.ask(prompt)
            fresh = await desk.ask(desk.prompt(NUM_FRESH_TOKENS))
            if cold.token_ids != hit.token_ids:
                raise WrongTokensError(f"a cached prompt of {len(prompt)} tokens: other tokens")
            if number < 0:
                continue  # the first round warms up
            samples.cold_ms.append(cold.timings.ttft_ms)
            samples.hit_ms.append(hit.timings.ttft_ms)
            samples.fresh_ms.append(fresh.timings.ttft_ms)
            samples.num_cached_tokens.append(hit.usage.num_cached_tokens)
    return found


async def measure_hand_overs(
    desks: Mapping[str, Desk], lengths: Sequence[int], num_rounds: int, report: Report
) -> list[HandOverSamples]:
    """Hand fresh prompts over, on each plane in turn."""
    found = [HandOverSamples(plane, length) for length in lengths for plane in desks]
    for number in range(-1, num_rounds):
        report(f"hand-overs, round {number + 1} of {num_rounds}")
        for samples in found:
            desk = desks[samples.plane]
            answer = await desk.ask(desk.prompt(samples.num_prompt_tokens), "remote")
            round_trip_ms = await desk.round_trip_ms()
            if number < 0:
                continue
            samples.hand_over_ms.append(answer.timings.hand_over_ms)
            samples.round_trip_ms.append(round_trip_ms)
            samples.prefill_ms.append(answer.timings.prefill_ms)
            samples.ttft_ms.append(answer.timings.ttft_ms)
    return found


@contextlib.contextmanager
def running_hosts(
    planes: Sequence[str], variables: Mapping[str, object]
) -> Iterator[dict[str, Hosts]]:
    """Run a stack for each plane while a block does."""
    with contextlib.ExitStack() as stack:
        running = {}
        for plane in planes:
            directory = stack.enter_context(hosts_directory())
            settings = variables
            if plane != SHARED_MEMORY:
                settings = {**variables, "TRANSFER_PLANES": plane}
            running[plane] = stack.enter_context(Hosts(directory, PLANES[plane], settings))
        yield running


async def open_desk(hosts: Hosts, rng: random.Random) -> Desk:
    """Connect to a stack."""
    bus = await NatsBus.connect(hosts.nats_url, "bench-prefix")
    status = read_status(hosts.one("near-decode").status_file)
    assert status is not None, "it is ready"
    return Desk(bus, WorkerId(status.worker_id), rng)
