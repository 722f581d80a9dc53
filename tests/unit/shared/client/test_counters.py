"""The counters of all processes, and what came to them between two looks."""

from slipstream.shared.bus.discovery import Discovery, Identity
from slipstream.shared.bus.endpoints import Endpoint
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.client.counters import ProcessCounters, ask_counters, spans_between
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.common import Role


def counters(name: str, role: Role, at_s: float, cpu_s: float, **counts: float) -> ProcessCounters:
    return ProcessCounters(WorkerId(name), role, 7, at_s, cpu_s, counts)


async def test_every_process_answers_for_itself_by_service_discovery() -> None:
    broker = MemoryBroker()
    told = {"process": {"pid": 7, "clock_s": 2.5, "cpu_s": 0.5}, "x_total": {"one": 3}, "y": 1}
    for role in ("kv", "decode"):
        identity = Identity(
            name=f"slipstream-{role}", id=f"{role}-1", version="1.0.0", metadata={"role": role}
        )
        bus = MemoryBus(broker)
        bus.endpoints.append(Endpoint(name="work", subject="work"))
        await Discovery(bus, identity, lambda: told).start()
    stranger = Identity(name="another", id="another-1", version="1.0.0")
    await Discovery(MemoryBus(broker), stranger, lambda: told).start()

    found = await ask_counters(MemoryBus(broker), wait_s=0.05)

    assert {"kv-1": "kv", "decode-1": "decode"} == {name: each.role for name, each in found.items()}
    one = found[WorkerId("kv-1")]
    assert (7, 2.5, 0.5, {"x_total one": 3, "y": 1}) == (
        one.pid,
        one.monotonic_s,
        one.cpu_s,
        one.counts,
    )


async def test_nobody_there_is_no_error() -> None:
    assert {} == await ask_counters(MemoryBus(MemoryBroker()), wait_s=0.01)


def test_what_came_meanwhile_is_told_of_those_who_were_there() -> None:
    before = [counters("b", "kv", 10, 1, x_total=5), counters("gone", "decode", 10, 1)]
    after = [
        counters("b", "kv", 12, 1.5, **{"x_total": 9, "y_total one": 2, "y_total two": 3}),
        counters("new", "decode", 12, 1),
    ]

    (span,) = spans_between(
        {each.worker_id: each for each in before}, {each.worker_id: each for each in after}
    )

    assert ("b", 2, 0.5) == (span.worker_id, span.seconds, span.cpu_s)
    assert (4, 5) == (span.total("x_total"), span.total("y_total"))
    assert {"one": 2, "two": 3} == span.by_label("y_total")
