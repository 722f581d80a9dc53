"""What a scheduler does that is not the active one: listen, and remember."""

import time
from collections import deque

from slipstream.services.scheduler.leadership import Leadership
from slipstream.services.scheduler.shadow import Shadow
from slipstream.shared.bus.bus import Bus, Handler, Incoming, Subscription
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import CANCEL, GENERATE, GENERATE_MODEL, REPORT, RESUME
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.messages.reports import WorkerReport

_CONTROL_S = 5.0  # cancels and resumes that are this old were answered, or are asked again
_MAX_NUM_CONTROLS = 1024


class Standby:
    """Owns the shadow."""

    def __init__(self, config: SchedulerConfig, bus: Bus, leadership: Leadership) -> None:
        self.shadow = Shadow(config.max_waiting_bytes, config.max_deadline_ms / 1000)
        self._bus = bus
        self._leadership = leadership
        self._controls: deque[tuple[float, Incoming]] = deque(maxlen=_MAX_NUM_CONTROLS)
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Listen to what clients send and workers report, beside who answers it."""
        for topic in (GENERATE, GENERATE_MODEL):
            await self._subscribe(topic.wildcard, self._generate)
        for topic in (CANCEL, RESUME):
            await self._subscribe(topic.wildcard, self._control)
        self._subscriptions.append(await serve(self._bus, REPORT.wildcard, REPORT, self._report))
        await self._bus.flush()

    async def stop(self) -> None:
        """Listen no more; what has come by now is remembered."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for each in subscriptions:
            await each.stop()

    def controls(self) -> list[Incoming]:
        """Take out the cancels and resumes of late, which perhaps nobody has answered."""
        now = time.monotonic()
        found = [each for at, each in self._controls if now - at < _CONTROL_S]
        self._controls.clear()
        return found

    def clear(self) -> None:
        """Forget everything: what was missed meanwhile would be taken for open."""
        self.shadow.clear()
        self._controls.clear()

    async def _subscribe(self, subject: str, handler: Handler) -> None:
        self._subscriptions.append(await self._bus.subscribe(subject, handler))

    async def _generate(self, incoming: Incoming) -> None:
        now = time.monotonic()
        self.shadow.drop_old(now)
        self.shadow.add(incoming, now)

    async def _control(self, incoming: Incoming) -> None:
        self._controls.append((time.monotonic(), incoming))

    async def _report(self, report: WorkerReport, _incoming: Incoming) -> None:
        self._leadership.saw_epoch(report.scheduler_epoch)
        self.shadow.report(report)
