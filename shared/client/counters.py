"""Ask all processes of a stack what they have counted, and what came to it in a while."""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.subjects import DISCOVERY_STATS
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.common import Role
from slipstream.shared.telemetry.tally_meter import PROCESS, flat

# Nobody knows how many there are. An event loop that is busy answers between two of its steps.
_ANSWERS_S = 0.5


@dataclass(frozen=True)
class ProcessCounters:
    """What a process has counted since it began: by the metric's name, then its labels."""

    worker_id: WorkerId
    role: Role
    pid: int
    monotonic_s: float
    cpu_s: float
    counts: Mapping[str, float]


class _Endpoint(msgspec.Struct):
    data: dict[str, Any] | None = None  # Any: see tally_meter.Tallies


class _Metadata(msgspec.Struct):
    role: Role


class _Stats(msgspec.Struct):
    """What of service discovery's `STATS` is needed; other services than ours have no such role."""

    id: str
    metadata: _Metadata
    endpoints: list[_Endpoint]


async def ask_counters(
    bus: Bus, wait_s: float = _ANSWERS_S, expected: Collection[WorkerId] = ()
) -> dict[WorkerId, ProcessCounters]:
    """Return the answers that come within a while, or until those expected are there."""
    found: dict[WorkerId, ProcessCounters] = {}
    is_complete = asyncio.Event()

    async def take(incoming: Incoming) -> None:
        counters = None if incoming.is_no_responders else _counters_in(incoming.payload)
        if counters is not None:
            found[counters.worker_id] = counters
            if expected and found.keys() >= set(expected):
                is_complete.set()

    inbox = bus.new_inbox()
    subscription = await bus.subscribe(inbox, take)
    try:
        await bus.publish(DISCOVERY_STATS, b"", reply=inbox)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await is_complete.wait()
    finally:
        await subscription.stop()
    return found


def _counters_in(payload: bytes) -> ProcessCounters | None:
    """Read an answer; None for that of a service that isn't ours."""
    try:
        stats = msgspec.json.decode(payload, type=_Stats)
    except msgspec.DecodeError:
        return None
    tallies = next((each.data for each in stats.endpoints if each.data is not None), {})
    if PROCESS not in tallies:
        return None
    process = tallies.pop(PROCESS)
    return ProcessCounters(
        worker_id=WorkerId(stats.id),
        role=stats.metadata.role,
        pid=process["pid"],
        monotonic_s=process["clock_s"],
        cpu_s=process["cpu_s"],
        counts=flat(tallies),
    )


@dataclass(frozen=True)
class ProcessSpan:
    """What a process counted between two answers."""

    worker_id: WorkerId
    role: Role
    pid: int
    seconds: float
    cpu_s: float
    counts: Mapping[str, float]

    def total(self, name: str) -> float:
        """Return a count, over all of its labels."""
        return sum(value for each, value in self.counts.items() if each.partition(" ")[0] == name)

    def by_label(self, name: str) -> dict[str, float]:
        """Return a count by the value of its one label."""
        split = ((each.partition(" "), value) for each, value in self.counts.items())
        return {label: value for (found, _, label), value in split if found == name}


def spans_between(
    before: Mapping[WorkerId, ProcessCounters], after: Mapping[WorkerId, ProcessCounters]
) -> list[ProcessSpan]:
    """Return what was counted meanwhile by those that answered both times, by role and name."""
    spans = [
        ProcessSpan(
            worker_id=worker_id,
            role=late.role,
            pid=late.pid,
            seconds=late.monotonic_s - early.monotonic_s,
            cpu_s=late.cpu_s - early.cpu_s,
            counts={
                name: value - early.counts.get(name, 0.0) for name, value in late.counts.items()
            },
        )
        for worker_id, late in after.items()
        if (early := before.get(worker_id)) is not None
    ]
    return sorted(spans, key=lambda span: (span.role, span.worker_id))
