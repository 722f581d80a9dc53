"""What `slipstream bench serve` measures: modes and the engine alone in turns, level by level."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.services.cli.console import progress
from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.services.cli.serve_bench_plan import Level, ServePlan
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.measure.load.engine import SteppedEngine, run_in_process
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.samples import LoadRun
from slipstream.shared.measure.load.summary import Summary, summarize


class NothingServedError(SlipstreamError):
    """A load of which nothing was answered has no figures."""

    code = "nothing_served"


@dataclass
class Cell:
    """One level of one mode, and the same of the engine alone if that was run."""

    mode: str
    level: Level
    runs: list[LoadRun] = field(default_factory=list)
    engine_runs: list[LoadRun] = field(default_factory=list)


@dataclass
class Bench:
    """Stacks that are up, by mode, and the engine without one."""

    plan: ServePlan
    clients: Mapping[str, LoadClient]
    engines: Mapping[str, SteppedEngine]

    async def measure(self, levels: Sequence[Level]) -> list[Cell]:
        """Take each level of each mode once a round, every other round in the opposite order."""
        cells = [Cell(mode, level) for level in levels for mode in self.clients]
        for round_idx in range(self.plan.options.rounds):
            for cell in cells if round_idx % 2 == 0 else reversed(cells):
                load = self.plan.load(cell.level, round_idx)
                what = f"round {round_idx + 1} of {self.plan.options.rounds}, {cell.level.name}"
                is_engine_first = round_idx % 2 == 1
                if is_engine_first:
                    await self._run_engine(cell, load, what)
                progress(f"{what}, {cell.mode}")
                salt = f"bench {self.plan.options.seed} {round_idx}"
                cell.runs.append(await self.clients[cell.mode].run(load, salt))
                if not is_engine_first:
                    await self._run_engine(cell, load, what)
            self._check(cells)
        return cells

    async def _run_engine(self, cell: Cell, load: Load, what: str) -> None:
        engine = self.engines.get(cell.mode)
        if engine is None:
            return
        progress(f"{what}, the engine of {cell.mode} alone")
        stop = threading.Event()
        try:
            cell.engine_runs.append(await asyncio.to_thread(run_in_process, engine, load, stop))
        finally:
            stop.set()

    def _check(self, cells: Sequence[Cell]) -> None:
        """Raise NothingServedError at once where requests fail, instead of after all rounds."""
        for cell in cells:
            found = summarize(cell.runs, self.plan.targets)
            if found.num_requests and found.num_failed == found.num_requests:
                raise NothingServedError(
                    f"{cell.mode}, {cell.level.name}: all {found.num_failed} requests failed "
                    f"({found.first_error or 'their answers were too short'})"
                )


async def capacity(client: LoadClient, plan: ServePlan, num_streams: int) -> float:
    """Return how many requests a second end when enough wait. Raises NothingServedError."""
    progress(f"looking for the highest rate, with {num_streams} streams")
    load = plan.load(Level(streams=num_streams), 0)
    run = await client.run(load, "capacity")
    found = summarize([run], plan.targets)
    outputs = [each.request.num_output_tokens for each in run.samples]
    if not found.throughput_tok_s:
        raise NothingServedError(
            f"no token came within {plan.options.seconds:g} s "
            f"({found.first_error or 'take a longer --seconds'})"
        )
    return found.throughput_tok_s / (sum(outputs) / len(outputs))


def better(one: Summary, other: Summary) -> bool:
    """Tell whether one run kept the targets better than another, or as well with more tokens."""

    def order(summary: Summary) -> tuple[float, float, float]:
        return (summary.goodput, summary.attainment or 0.0, summary.throughput_tok_s)

    return order(one) > order(other)
