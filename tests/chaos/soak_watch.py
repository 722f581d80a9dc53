"""What every process of a stack uses and holds while a soak runs: sampled, judged, and shown."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.chaos.soak_slopes import Trend, trend_of
from tests.end_to_end import client, scrape, stack

_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
_THREADS = re.compile(r"^Threads:\s+(\d+)$", re.MULTILINE)
_KINDS = ("memory_kib", "num_files", "num_threads")

# Above both it grows: between the medians of the first and the last third, and in an hour. Memory:
# what allocators keep of their peaks comes in steps of a MiB, a few minutes long; a record of 1 KiB
# that is lost with each of ten requests a second would be 36 MiB an hour. What is held comes and
# goes with the load, a long prompt's 94 blocks at once; at the end it must be nothing.
LIMITS: Mapping[str, tuple[float, float]] = {
    "memory_kib": (4096.0, 8192.0),
    "num_files": (2.0, 12.0),
    "num_threads": (2.0, 12.0),
    "held": (96.0, 300.0),
}


@dataclass
class Series:
    """One figure of one process, over time."""

    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, time_s: float, value: float) -> None:
        """Take a value in."""
        self.times_s.append(time_s)
        self.values.append(value)

    def after(self, warm_s: float) -> Trend:
        """Return how it went on after the warm-up."""
        start = sum(each < warm_s for each in self.times_s)
        return trend_of(self.times_s[start:], self.values[start:])


@dataclass
class SoakWatch:
    """Looks at all processes, at the books of blocks, and at what the services say they hold."""

    running: stack.Stack
    asking: client.Client
    began_s: float = field(default_factory=time.monotonic)
    series: dict[str, dict[str, Series]] = field(default_factory=dict)  # by process, by figure
    problems: list[str] = field(default_factory=list)  # of the books
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def now_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began_s

    async def look(self) -> None:
        """Take one sample of everything."""
        now_s = self.now_s
        for name, pid in (await asyncio.to_thread(self._processes)).items():
            if self.pids.setdefault(name, pid) != pid:
                self.problems.append(f"{name} was started again")
                self.pids[name] = pid
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for kind, value in _figures(pid).items():
                    self._add(name, kind, now_s, value)
        books = await self.asking.audit()
        self.problems += books.get("problems", [])
        for state in ("leases", "leased", "granted", "committed", "quarantined"):
            self._add("blocks", f"held {state}", now_s, books[f"num_{state}"])
        shown = await scrape.scrape(self.running, self._services())
        for service, samples in shown.samples.items():
            held = [each.value for each in samples if each.name == "slipstream_requests"]
            if held:
                self._add(service, "held requests", now_s, sum(held))

    def trends(self, warm_s: float) -> dict[str, dict[str, Trend]]:
        """Return how everything went on after the warm-up."""
        return {
            name: {kind: each.after(warm_s) for kind, each in kinds.items()}
            for name, kinds in self.series.items()
        }

    def growing(self, warm_s: float) -> list[str]:
        """Return what grew."""
        return [
            f"{name}: {kind} grew from {trend.first:g} to {trend.last:g}, {trend.per_hour:.0f}/h"
            for name, kinds in self.trends(warm_s).items()
            for kind, trend in kinds.items()
            if trend.grows(*LIMITS[kind.partition(" ")[0]])
        ]

    def table(self, warm_s: float) -> str:
        """Return what a person reads."""
        lines = [
            "| process | figure | first third | last third | an hour |",
            "|---|---|---|---|---|",
        ]
        for name, kinds in sorted(self.trends(warm_s).items()):
            for kind, trend in kinds.items():
                values = f"{trend.first:,.0f} | {trend.last:,.0f} | {trend.per_hour:+,.0f}"
                lines.append(f"| {name} | {kind} | {values} |")
        return "\n".join(lines)

    def as_json(self, warm_s: float, more: Mapping[str, object]) -> str:
        """Return trends and all samples."""
        trends = {
            name: {kind: asdict(trend) for kind, trend in kinds.items()}
            for name, kinds in self.trends(warm_s).items()
        }
        samples = {
            name: {kind: asdict(each) for kind, each in kinds.items()}
            for name, kinds in self.series.items()
        }
        return json.dumps({**more, "warm_s": warm_s, "trends": trends, "samples": samples})

    def _add(self, name: str, kind: str, now_s: float, value: float) -> None:
        self.series.setdefault(name, {}).setdefault(kind, Series()).add(now_s, value)

    def _services(self) -> list[str]:
        files = (self.running.run_dir / "status").glob("*.json")
        return sorted(each.stem for each in files)

    def _processes(self) -> dict[str, int]:
        """Return all processes of the stack: services, the server, and who keeps them."""
        found = {name: self.running.pid(name) for name in self._services()}
        found["up"] = self.running.process.pid
        for pid, line in stack.marked_processes(self.running.mark).items():
            if "nats-server" in line:
                found["nats"] = pid
        return found


@contextlib.asynccontextmanager
async def watching(
    running: stack.Stack, asking: client.Client, every_s: float
) -> AsyncIterator[SoakWatch]:
    """Watch while a block runs."""
    watch = SoakWatch(running, asking)

    async def look_on() -> None:
        while True:
            await watch.look()
            await asyncio.sleep(every_s)

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look_on())
        yield watch
        looking.cancel()


def _figures(pid: int) -> dict[str, float]:
    """Return a process's own memory (the arena and files, which it shares, are not among it)."""
    process = Path(f"/proc/{pid}")
    status = (process / "status").read_text()
    memory, threads = _ANONYMOUS.search(status), _THREADS.search(status)
    assert memory is not None, "Linux shows it of every process"
    assert threads is not None, "likewise"
    values = (int(memory[1]), len(list((process / "fd").iterdir())), int(threads[1]))
    return dict(zip(_KINDS, values, strict=True))
