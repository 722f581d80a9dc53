"""Reports: at each change and at least every 300 ms, the record again and again."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import REPORT
from slipstream.shared.errors import DisconnectedError
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.reports import WorkerRecord, WorkerReport
from slipstream.shared.worker import reporter as reporter_module
from slipstream.shared.worker.report_book import ReportBook
from slipstream.shared.worker.reporter import Reporter, new_epoch

WORKER = WorkerId("w")
RECORD = WorkerRecord(
    worker_id=WORKER, role="decode", epoch=3, protocol=1, version="0", num_seats=2
)


@pytest.fixture
def reports() -> "asyncio.Queue[WorkerReport]":
    return asyncio.Queue()


@pytest.fixture
async def reporter(reports: "asyncio.Queue[WorkerReport]") -> AsyncIterator[Reporter]:
    bus = MemoryBus()

    async def take(incoming: Incoming) -> None:
        reports.put_nowait(decoder_of(WorkerReport).decode(incoming.payload))

    await bus.subscribe(REPORT.subject(worker_id=WORKER), take)
    made = Reporter(bus, RECORD, ReportBook(), lambda: 5)
    await made.start()
    yield made
    await made.stop()


async def next_report(reports: "asyncio.Queue[WorkerReport]") -> WorkerReport:
    return await asyncio.wait_for(reports.get(), 5)


async def test_the_first_report_is_full_and_the_next_ones_are_numbered(
    reporter: Reporter, reports: "asyncio.Queue[WorkerReport]"
) -> None:
    first, second = await next_report(reports), await next_report(reports)

    assert (True, 1, False, 2) == (first.is_full, first.number, second.is_full, second.number)
    assert (3, 2, 5) == (first.epoch, first.num_free_seats, first.num_free_blocks)


async def test_a_change_is_reported_at_once(
    reporter: Reporter, reports: "asyncio.Queue[WorkerReport]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "REPORT_S", 100)
    await next_report(reports)
    reporter.book.hold((RequestId("r"), 1), "decoding")
    reporter.changed()
    report = await next_report(reports)
    while not report.held:  # one that the timer sent meanwhile
        report = await next_report(reports)

    assert 1 == report.num_free_seats


async def test_a_report_that_could_not_be_sent_is_not_the_last(
    reporter: Reporter, reports: "asyncio.Queue[WorkerReport]", monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise DisconnectedError("x")

    await next_report(reports)
    with monkeypatch.context() as patch:
        patch.setattr(reporter._bus, "publish", fail)
        reporter.changed()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert (await next_report(reports)).number > 1


async def test_draining_is_told_and_the_registry_left(
    reporter: Reporter, reports: "asyncio.Queue[WorkerReport]"
) -> None:
    assert [WORKER] == list(await reporter._bus.registry().entries())
    reporter.drain()
    while not (await next_report(reports)).is_draining:
        pass
    await reporter.stop()

    assert {} == await reporter._bus.registry().entries()


def test_epochs_grow() -> None:
    assert new_epoch() <= new_epoch()
