"""Who works for a stack, by the registry and by what each says of itself; and telling one to go."""

import asyncio
import time

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.durable import StorageError
from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.subjects import WORKER_TOPICS
from slipstream.shared.errors import (
    ConfigurationError,
    NoAnswerError,
    NoRespondersError,
    SlipstreamError,
)
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.reports import (
    Drain,
    LeaderRecord,
    ReportRequest,
    WorkerRecord,
    WorkerReport,
)

_ANSWER_S = 2.0
_LOOK_S = 0.2


async def find_workers(bus: Bus) -> list[WorkerReport]:
    """Return the reports of all workers that answer now."""
    asks = [_ask(bus, record, ReportRequest()) for record in await records_of(bus)]
    answers = await asyncio.gather(*asks, return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, WorkerReport)]


async def find_active(bus: Bus) -> WorkerId | None:
    """Return the scheduler that leads, where there is a bucket that says so."""
    try:
        entry = await bus.leader().get()
    except StorageError:
        return None
    if entry is None:
        return None
    record: LeaderRecord = decoder_of(LeaderRecord).decode(entry.value)
    return record.scheduler_id


async def drain(bus: Bus, worker_id: str, wait_s: float) -> int | None:
    """
    Tell a worker to leave; return how much it still holds after a wait, None when it is gone.

    One that is too busy to answer is asked again until the wait ends. Raises ConfigurationError
    for a worker that isn't there, NoAnswerError for one that never answered, and else as `call`.
    """
    records = await records_of(bus)
    record = next((each for each in records if each.worker_id == worker_id), None)
    if record is None:
        known = ", ".join(sorted(each.worker_id for each in records)) or "none"
        raise ConfigurationError(f"no worker {worker_id!r} is here; those that are: {known}")
    deadline_s = time.monotonic() + wait_s
    report: WorkerReport | None = None
    while True:
        try:
            # The order is repeated until it is known to have come.
            report = await _ask(bus, record, ReportRequest() if report is not None else Drain())
        except NoAnswerError:
            if report is None and time.monotonic() >= deadline_s:
                raise
        except NoRespondersError:
            return None
        if report is not None and time.monotonic() >= deadline_s:
            return len(report.held)
        await asyncio.sleep(_LOOK_S)


async def records_of(bus: Bus) -> list[WorkerRecord]:
    """Return what the registry has of workers, those that are gone for seconds included."""
    entries = (await bus.registry().entries()).values()
    records = [decoder_of(WorkerRecord).decode(entry) for entry in entries]
    return [each for each in records if each.role in WORKER_TOPICS]


async def _ask(bus: Bus, record: WorkerRecord, message: Drain | ReportRequest) -> WorkerReport:
    topic, worker_id = WORKER_TOPICS[record.role], WorkerId(record.worker_id)
    answer = await call(bus, topic, message, timeout_s=_ANSWER_S, worker_id=worker_id)
    if not isinstance(answer, WorkerReport):
        raise SlipstreamError(f"{worker_id} answered {type(answer).__name__}")
    return answer
