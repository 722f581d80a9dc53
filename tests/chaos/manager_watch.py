"""What the KV manager holds while a test runs: memory of its process, objects in its books."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.end_to_end import client

_PERIOD_S = 0.2
_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """One look at it."""

    num_done: int  # requests, by then
    memory_kib: int
    num_leases: int
    num_indexed: int
    num_problems: int


@dataclass
class ManagerWatch:
    """Looks again and again."""

    samples: list[Sample] = field(default_factory=list)

    def grown_kib(self, num_warm: int) -> int:
        """Return how much memory came after so many requests, by the medians of some samples."""
        warm = [each.memory_kib for each in self.samples if each.num_done >= num_warm]
        num_each = max(1, len(warm) // 5)
        return _median(warm[-num_each:]) - _median(warm[:num_each])


@contextlib.asynccontextmanager
async def watching(
    asking: client.Client, pid: int, num_done: Callable[[], int]
) -> AsyncIterator[ManagerWatch]:
    """Watch the manager while a block runs."""
    watch = ManagerWatch()

    async def look() -> None:
        while True:
            books = await asking.audit()
            problems = len(books.get("problems", []))
            watch.samples.append(
                Sample(
                    num_done(),
                    memory_kib(pid),
                    books["num_leases"],
                    books.get("num_indexed", 0),
                    problems,
                )
            )
            await asyncio.sleep(_PERIOD_S)

    task = asyncio.create_task(look())
    try:
        yield watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def memory_kib(pid: int) -> int:
    """Return a process's own memory; the arena, which it shares, is not among it."""
    found = _ANONYMOUS.search(Path(f"/proc/{pid}/status").read_text())
    assert found is not None, "Linux shows it of every process"
    return int(found[1])


def _median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]
