"""A worker that is told to leave: it may be too busy to answer, and is gone when nobody listens."""

from collections.abc import Callable

import pytest

from slipstream.services.cli import workers
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import DECODE
from slipstream.shared.errors import ConfigurationError, NoAnswerError
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.reports import (
    Drain,
    HeldSequence,
    ReportRequest,
    WorkerRecord,
    WorkerReport,
)

ID = WorkerId("decode-a")


class Worker:
    """Answers when a test lets it, and goes when it is told to."""

    def __init__(
        self, bus: MemoryBus, is_silent: Callable[[int], bool], worker_id: WorkerId = ID
    ) -> None:
        self._bus = bus
        self._id = worker_id
        self._is_silent = is_silent  # by how many it was asked before
        self.asked: list[Drain | ReportRequest] = []
        self.leaves_after = 10**6

    async def listen(self) -> "Worker":
        record = WorkerRecord(worker_id=self._id, role="decode", epoch=1, protocol=1, version="1")
        await self._bus.registry().put(self._id, encode(record))
        await self._bus.subscribe(DECODE.subject(worker_id=self._id), self._answer)
        return self

    async def _answer(self, incoming: Incoming) -> None:
        self.asked.append(decoder_of(Drain | ReportRequest).decode(incoming.payload))
        num_asked = len(self.asked)
        if not self._is_silent(num_asked - 1):
            held = [
                HeldSequence(request_id=RequestId("r"), attempt=1, phase="decoding", next_index=3)
            ]
            report = WorkerReport(
                worker_id=self._id,
                role="decode",
                epoch=1,
                number=num_asked,
                num_seats=4,
                num_free_seats=3,
                is_draining=True,
                held=held,
            )
            await self._bus.publish(incoming.reply, encode(report))
        if num_asked >= self.leaves_after:
            self._bus.broker.subscriptions.clear()


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> MemoryBus:
    monkeypatch.setattr(workers, "_ANSWER_S", 0.05)
    monkeypatch.setattr(workers, "_LOOK_S", 0.01)
    return MemoryBus()


async def test_a_worker_that_is_silent_hides_none_of_those_that_answer(bus: MemoryBus) -> None:
    await Worker(bus, lambda _number: True).listen()
    await Worker(bus, lambda _number: False, WorkerId("decode-b")).listen()

    assert ["decode-b"] == [each.worker_id for each in await workers.find_workers(bus)]


async def test_a_worker_too_busy_to_answer_is_asked_again_until_it_is_gone(bus: MemoryBus) -> None:
    worker = await Worker(bus, lambda number: number % 2 == 1).listen()
    worker.leaves_after = 6

    assert await workers.drain(bus, ID, 5) is None
    assert [Drain()] + 5 * [ReportRequest()] == worker.asked


async def test_the_order_is_repeated_until_it_is_known_to_have_come(bus: MemoryBus) -> None:
    worker = await Worker(bus, lambda number: number < 2).listen()

    assert 1 == await workers.drain(bus, ID, 0.5)
    assert [Drain()] * 3 == worker.asked[:3]
    assert ReportRequest() == worker.asked[3]


async def test_what_was_known_last_is_said_when_the_wait_ends_in_silence(bus: MemoryBus) -> None:
    await Worker(bus, lambda number: number > 0).listen()

    assert 1 == await workers.drain(bus, ID, 0.1)


async def test_a_worker_that_never_answered_is_not_said_to_leave(bus: MemoryBus) -> None:
    await Worker(bus, lambda _number: True).listen()
    with pytest.raises(NoAnswerError):
        await workers.drain(bus, ID, 0.1)


async def test_a_worker_that_is_not_there_is_named_with_those_that_are(bus: MemoryBus) -> None:
    await Worker(bus, lambda _number: False).listen()
    with pytest.raises(ConfigurationError, match=r"'nobody' is here; those that are: decode-a"):
        await workers.drain(bus, "nobody", 0)
