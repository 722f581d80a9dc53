"""The scheduler's parts on the in-memory bus, and what its client got."""

import asyncio
from typing import Any

from slipstream.services.scheduler.answers import Answers
from slipstream.services.scheduler.desk import Desk
from slipstream.services.scheduler.dispatch import Dispatcher
from slipstream.services.scheduler.load import Load
from slipstream.services.scheduler.metrics import SchedulerMetrics
from slipstream.services.scheduler.watch import Watch
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import ClientAnswer, decoder_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Cancel, Cancelled
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter
from slipstream.shared.telemetry.tracing import Tracer

from .scheduler_samples import INBOX, Worker, held, make_config, make_record, make_report, until

R = RequestId("r")
FINISHED: dict[str, Any] = {"was_answered": True, "finish_reason": "stop"}


class Office:
    """A desk with its watch, its fleet, and what its client got."""

    def __init__(self, **config: Any) -> None:
        self.bus = MemoryBus()
        self.fleet = Fleet()
        self.answers: list[Any] = []
        self._numbers: dict[str, int] = {}
        self.meter = PrometheusMeter()
        metrics = SchedulerMetrics(self.meter)
        tracer = Tracer()
        settings = make_config(**config)
        self.desk = Desk(
            settings,
            tracer,
            Load(settings, self.fleet),
            Answers(self.bus, "fake"),
            Dispatcher(self.bus, tracer, "fake"),
            32,
            metrics,
        )
        metrics.watch(self.desk.records.values)
        self.watch = Watch(self.bus, self.fleet, self.desk)
        self._loops: list[asyncio.Task[None]] = []

    async def open(self) -> "Office":
        async def take(incoming: Incoming) -> None:
            self.answers.append(decoder_of(ClientAnswer).decode(incoming.payload))

        await self.bus.subscribe(INBOX, take)
        self._loops = [asyncio.create_task(self.desk.place_loop())]
        return self

    async def close(self) -> None:
        for loop in self._loops:
            assert not loop.done(), "nothing may end this loop"
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def report(self, worker: Worker | str, role: Any = "decode", **fields: Any) -> None:
        """Have a worker report, the next number."""
        worker_id = worker if isinstance(worker, str) else worker.worker_id
        role = role if isinstance(worker, str) else worker.role
        self._numbers[worker_id] = self._numbers.get(worker_id, 0) + 1
        report = make_report(worker_id, role, number=self._numbers[worker_id], **fields)
        await self.watch.report(report)

    async def worker(self, worker_id: str, role: Any = "decode", **fields: Any) -> Worker:
        worker = await Worker(worker_id, role).listen(self.bus)
        await self.report(worker, **fields)
        return worker

    @property
    def codes(self) -> list[str]:
        return [each.code for each in self.answers if isinstance(each, Failed)]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.meter.registry.get_sample_value(name, labels)

    def assert_empty(self) -> None:
        assert not self.desk.records
        queue = self.desk.load.queue
        assert (0, 0, []) == (len(queue), queue.num_bytes, self.desk.load.waiting())
        assert not self.fleet._assigned
        assert not self.fleet._placed
        assert not self.fleet._windows


async def running(office: Office, *, is_streamed: bool = True, **fields: Any) -> tuple[Any, Worker]:
    """Return a record that decodes on worker d."""
    decode = await office.worker("d")
    record = make_record(is_streamed=is_streamed, **fields)
    office.desk.open(record)
    await until(lambda: decode.jobs)
    await office.report(decode, held=[held()])
    return record, decode


async def cancel(office: Office) -> Cancelled:
    """Cancel the record of `running`."""
    return await office.desk.cancel(Cancel(request_id=R))
