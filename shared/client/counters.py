"""Ask all processes of a stack what they have counted, and what came to it in a while."""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.discovery import Stats
from slipstream.shared.bus.subjects import DISCOVERY_STATS
from slipstream.shared.ids import WorkerId
from slipstream.shared.telemetry import metric_names

# Nobody knows how many there are. An event loop that is busy answers between two of its steps.
_ANSWERS_S = 0.5
_OURS = "slipstream-"

_decode_stats = msgspec.json.Decoder(Stats).decode


@dataclass(frozen=True)
class ProcessCounters:
    """What a process has counted since it began: by a metric's name, then its labels."""

    worker_id: WorkerId
    role: str
    pid: int
    counts: Mapping[str, float]


async def ask_counters(
    bus: Bus, wait_s: float = _ANSWERS_S, expected: Collection[WorkerId] = ()
) -> dict[WorkerId, ProcessCounters]:
    """Return the answers that come within a while, or until those expected are there."""
    found: dict[WorkerId, ProcessCounters] = {}
    is_complete = asyncio.Event()

    async def take(incoming: Incoming) -> None:
        # Somebody else's service may answer, too, or nobody.
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            counters = _counters_of(_decode_stats(incoming.payload))
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


def _counters_of(stats: Stats) -> ProcessCounters | None:
    tallies = next((each.data for each in stats.endpoints if each.data is not None), None)
    if not stats.name.startswith(_OURS) or not isinstance(tallies, Mapping):
        return None
    pid = stats.metadata.get("pid", "")
    return ProcessCounters(
        worker_id=WorkerId(stats.id),
        role=stats.name.removeprefix(_OURS),
        pid=int(pid) if pid.isdecimal() else 0,
        counts=dict(_flat(tallies)),
    )


def _flat(tallies: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    # Any: a number, or a dictionary as deep as there are labels
    found: list[tuple[str, float]] = []
    for name, value in tallies.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name} ")
        elif isinstance(value, int | float):
            found.append((f"{prefix}{name}", value))
    return found


@dataclass(frozen=True)
class ProcessSpan:
    """What a process counted between two answers."""

    worker_id: WorkerId
    role: str
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
        _span_between(early, late)
        for worker_id, late in after.items()
        if (early := before.get(worker_id)) is not None
    ]
    return sorted(spans, key=lambda span: (span.role, span.worker_id))


def _span_between(early: ProcessCounters, late: ProcessCounters) -> ProcessSpan:
    counts = {name: value - early.counts.get(name, 0.0) for name, value in late.counts.items()}
    return ProcessSpan(
        worker_id=late.worker_id,
        role=late.role,
        pid=late.pid,
        seconds=counts.get(metric_names.UPTIME.name, 0.0),
        cpu_s=counts.get(metric_names.PROCESS_CPU.name, 0.0),
        counts=counts,
    )
