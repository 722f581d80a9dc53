"""Readiness: asked by many, of a scheduler that has better things to do."""

import asyncio

import pytest

from slipstream.services.gateway import fleet
from slipstream.services.gateway.fleet import FleetWatch
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import CANCEL
from slipstream.shared.messages.generate import Cancel, Cancelled


async def test_however_many_want_to_know_a_scheduler_is_asked_once() -> None:
    bus = MemoryBus()
    asked: list[Cancel] = []

    async def answer(message: Cancel, _incoming: Incoming) -> Cancelled:
        asked.append(message)
        return Cancelled(request_id=message.request_id)

    await serve(bus, CANCEL.wildcard, CANCEL, answer)
    watch = FleetWatch(bus)

    found = await asyncio.gather(*(watch.has_scheduler() for _ in range(20)))

    assert [True] * 20 == [*found]
    assert 1 == len(asked)


async def test_what_was_heard_counts_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MemoryBus()
    watch = FleetWatch(bus)

    assert not await watch.has_scheduler()
    monkeypatch.setattr(fleet, "_KNOWN_S", 0.0)

    async def answer(message: Cancel, _incoming: Incoming) -> Cancelled:
        return Cancelled(request_id=message.request_id)

    await serve(bus, CANCEL.wildcard, CANCEL, answer)
    assert await watch.has_scheduler()
