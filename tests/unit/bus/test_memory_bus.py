"""What only the in-memory bus has; its behaviour as a bus is tests/integration/test_bus.py."""

import pytest

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus, matches


@pytest.mark.parametrize(
    ("pattern", "subject", "is_match"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("*.b", "a.b", True),
        ("a.*.c", "a.b.c", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c.d", True),
    ],
)
def test_wildcards_match_as_on_the_server(pattern: str, subject: str, *, is_match: bool) -> None:
    assert is_match == matches(pattern, subject)


async def test_broker_remembers_what_was_published() -> None:
    broker = MemoryBroker()
    await MemoryBus(broker).publish("a.b", b"1", headers={"name": "text"})

    assert [Incoming("a.b", b"1", "", {"name": "text"})] == broker.published


async def test_flush_waits_for_handlers_and_what_they_publish_in_turn() -> None:
    bus = MemoryBus()
    seen: list[bytes] = []

    async def pass_on(message: Incoming) -> None:
        await bus.publish("second", message.payload)

    async def take(message: Incoming) -> None:
        seen.append(message.payload)

    await bus.subscribe("first", pass_on)
    await bus.subscribe("second", take)
    await bus.publish("first", b"1")
    await bus.flush()

    assert [b"1"] == seen
