"""The counters of all processes, and what came to them between two looks."""

import asyncio
from typing import Any

import pytest

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.discovery import Discovery, Identity
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.bus.subjects import REPORT
from slipstream.shared.client.counters import ProcessCounters, ask_counters, spans_between
from slipstream.shared.ids import WorkerId
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.tally_meter import TallyMeter

_UPTIME, _CPU = "slipstream_uptime_seconds", "process_cpu_seconds_total"


async def start(bus: Bus, name: str, tallies: object) -> None:
    """Run a service that counts."""

    async def ignore(_message: object, _incoming: Incoming) -> None:
        """Be one that can be asked for something."""

    await serve(bus, REPORT.wildcard, REPORT, ignore, name="reports")
    identity = Identity(
        name=f"slipstream-{name}", id=f"{name}-1", version="1.0.0", metadata={"pid": "42"}
    )
    await Discovery(bus, identity, lambda: tallies).start()


def counters(name: str, at_s: float, cpu_s: float, **counts: float) -> ProcessCounters:
    return ProcessCounters(WorkerId(name), "kv", 7, {_UPTIME: at_s, _CPU: cpu_s, **counts})


async def test_every_process_answers_for_itself() -> None:
    broker = MemoryBroker()
    meter = TallyMeter()
    meter.counter(metric_names.DRAFT_TOKENS).add("accepted", amount=3)
    meter.counter(metric_names.OUTPUT_TOKENS).add(amount=2)
    meter.histogram(metric_names.QUEUE_TIME).record(0.5)
    await start(MemoryBus(broker), "kv", {})
    await start(MemoryBus(broker), "decode", meter.read())

    found = await ask_counters(MemoryBus(broker), wait_s=0.05)

    assert {"kv-1": "kv", "decode-1": "decode"} == {name: each.role for name, each in found.items()}
    decode = found[WorkerId("decode-1")]
    assert 42 == decode.pid
    assert {
        "slipstream_draft_tokens_total accepted": 3,
        "slipstream_output_tokens_total": 2,
        "slipstream_queue_time_seconds count": 1,
        "slipstream_queue_time_seconds sum": 0.5,
    } == decode.counts


async def test_once_those_expected_have_answered_nobody_is_waited_for() -> None:
    broker = MemoryBroker()
    await start(MemoryBus(broker), "kv", {})

    async with asyncio.timeout(5):
        found = await ask_counters(MemoryBus(broker), wait_s=60, expected=[WorkerId("kv-1")])

    assert ["kv-1"] == list(found)


@pytest.mark.parametrize("payload", [b"", b"{}", b"\xff\x00"])
async def test_what_is_no_answer_of_ours_is_passed_over(payload: bytes) -> None:
    broker = MemoryBroker()
    other = MemoryBus(broker)

    async def answer(incoming: Incoming) -> None:
        await other.publish(incoming.reply, payload)

    await other.subscribe("$SRV.STATS", answer)

    assert {} == await ask_counters(MemoryBus(broker), wait_s=0.02)


async def test_nobody_there_is_no_error() -> None:
    assert {} == await ask_counters(MemoryBus(MemoryBroker()), wait_s=0.01)


def test_what_came_meanwhile_is_told_of_those_who_were_there() -> None:
    more: dict[str, Any] = {"x_total": 9, "y_total one": 2, "y_total two": 3}  # Any: as given
    before = [counters("b", 10, 1, x_total=5), counters("gone", 10, 1)]
    after = [counters("b", 12, 1.5, **more), counters("new", 12, 1)]

    (span,) = spans_between(
        {each.worker_id: each for each in before}, {each.worker_id: each for each in after}
    )

    assert ("b", 2, 0.5) == (span.worker_id, span.seconds, span.cpu_s)
    assert (4, 5) == (span.total("x_total"), span.total("y_total"))
    assert {"one": 2, "two": 3} == span.by_label("y_total")
