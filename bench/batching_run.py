"""One way through all requests, and what the services say of it."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from batch_model import Slots, slots_of
from batching_ways import Seats, Way
from stack import MeteredStack
from trace_client import Answer, TraceClient, TraceRequest

from slipstream.shared.bus.nats_bus import NatsBus

_SAMPLE_S = 0.25
_WORKERS = ("decode", "prefill")
_ALLOCATED = ("granted", "leased", "committed")


@dataclass(frozen=True)
class Run:
    """The answers of all requests, and what was counted meanwhile."""

    answers: Sequence[Answer]
    seconds: float
    slots: Slots  # of all samples together
    counted: Mapping[str, Mapping[str, float]]  # by worker

    @property
    def figures(self) -> dict[str, float]:
        """What is said of a run, by name."""
        num_output = sum(len(answer.token_ids) for answer in self.answers)
        num_prompt = sum(answer.request.lengths.num_prompt_tokens for answer in self.answers)
        decode, slots = self.counted["decode"], self.slots
        num_steps = decode["batch_size_count"]  # none for prompts alone on the prefill worker
        busy_s = {name: each["engine_busy_seconds_total"] for name, each in self.counted.items()}
        return {
            "seconds": self.seconds,
            "output tokens/s": num_output / self.seconds,
            "all tokens/s": (num_output + num_prompt) / self.seconds,
            "seconds to first token": statistics.mean(
                answer.to_first_token_s for answer in self.answers
            ),
            "decode steps": num_steps,
            "sequences in a step": decode["batch_size_sum"] / max(1, num_steps),
            "decode engine, % of time": 100 * busy_s["decode"] / self.seconds,
            "prefill engine, % of time": 100 * busy_s["prefill"] / self.seconds,
            "CPU seconds of workers": sum(
                each["process_cpu_seconds_total"] for each in self.counted.values()
            ),
            "preemptions": decode["preemptions_total"],
            "% of slots in last blocks": slots.percent(slots.tails),
            "% of slots for prompts": slots.percent(slots.prompts),
            "% of slots ahead": slots.percent(slots.ahead),
        }


@dataclass
class Bench:
    """A stack with seats for requests."""

    stack: MeteredStack
    bus: NatsBus
    seats: Seats
    num_runs: int = field(default=0, init=False)

    async def run(self, way: Way, requests: Sequence[TraceRequest]) -> Run:
        """Take one way through the requests."""
        self.num_runs += 1
        # The same prompts as before, and yet nothing of them is cached.
        client = TraceClient(self.bus, cache_salt=f"run {self.num_runs}")
        before = await self._counters()
        async with self._sampling(client) as samples:
            began_s = time.perf_counter()
            answers = await way(client, requests, self.seats)
            seconds = time.perf_counter() - began_s
        after = await self._counters()
        counted = {
            worker: {name: value - before[worker].get(name, 0.0) for name, value in of.items()}
            for worker, of in after.items()
        }
        return Run(answers, seconds, sum(samples, Slots()), counted)

    async def _counters(self) -> dict[str, dict[str, float]]:
        return {name: await self._metrics(name) for name in _WORKERS}

    async def _metrics(self, service: str) -> dict[str, float]:
        return await asyncio.to_thread(self.stack.metrics, service)

    @contextlib.asynccontextmanager
    async def _sampling(self, client: TraceClient) -> AsyncIterator[list[Slots]]:
        """Look at the KV cache now and then, while a block runs."""
        samples: list[Slots] = []

        async def sample() -> None:
            while True:
                await asyncio.sleep(_SAMPLE_S)
                found = await self._metrics("kv")
                num_blocks = sum(int(found[f"kv_blocks {state}"]) for state in _ALLOCATED)
                num_committed = int(found["kv_blocks committed"])
                samples.append(slots_of(num_blocks, num_committed, client.progress()))

        task = asyncio.create_task(sample())
        try:
            yield samples
        finally:
            task.cancel()
