"""The scheduler on the bus: the active one, or one that stands by."""

import asyncio

from slipstream.services.scheduler.front import Front
from slipstream.services.scheduler.reign import Reign
from slipstream.services.scheduler.submissions import Submissions
from slipstream.shared.bus.bus import Bus
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.ids import WorkerId
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.common import Role
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import Tracer


class SchedulerService:
    """Admits, queues and places requests while it leads."""

    role: Role = "scheduler"

    def __init__(
        self,
        config: SchedulerConfig,
        bus: Bus,
        tracer: Tracer,
        worker_id: WorkerId,
        meter: Meter,
    ) -> None:
        self.worker_id = worker_id
        self.reign = Reign(config, bus, tracer, worker_id, meter)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def detail(self) -> str:
        """Whether it leads."""
        return "active" if self._front is not None else "standby"

    async def start(self) -> None:
        """Read the model's tokenizer, then lead if nobody does, else stand by."""
        await self.reign.start()
        self._tasks = [asyncio.create_task(loop) for loop in self.reign.loops()]

    async def wait(self) -> None:
        """Run until a loop fails, which none should."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Hand over to a standby; without one refuse what waits, or put it back."""
        await cancel_all(self._tasks)
        await self.reign.stop()

    @property
    def _front(self) -> Front | None:
        return self.reign.term.front if self.reign.term is not None else None

    @property
    def _submissions(self) -> Submissions | None:
        return self.reign.term.submissions if self.reign.term is not None else None
