"""Lead when the lease says so, stand by when it doesn't, and tell the others which."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import structlog

from slipstream.services.scheduler.leadership import Leadership
from slipstream.services.scheduler.lease import LeaderLease
from slipstream.services.scheduler.opening import OpenModel, open_admission
from slipstream.services.scheduler.standby import Standby
from slipstream.services.scheduler.succession import Succession
from slipstream.services.scheduler.term import Term
from slipstream.services.scheduler.term_bus import TermBus
from slipstream.services.scheduler.term_meter import TermMeter
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import EVENT
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.reports import (
    RequestAdmitted,
    RequestsSettled,
    SchedulerState,
)
from slipstream.shared.telemetry.meter import Meter
from slipstream.shared.telemetry.tracing import Tracer

log = structlog.get_logger()

_TELL_S = 1.0
_STANDBY_HEARD_S = 3.0
_GOING_TOO_S = 0.2


class Reign:
    """Owns the term, if there is one, and the standby's shadow, if there is none."""

    def __init__(
        self,
        config: SchedulerConfig,
        bus: Bus,
        tracer: Tracer,
        scheduler_id: WorkerId,
        meter: Meter,
    ) -> None:
        self.leadership = Leadership()
        self.term: Term | None = None
        self._config = config
        self._bus = bus
        self._tracer = tracer
        self._meter = TermMeter(meter)
        self._scheduler_id = scheduler_id
        self._lease = LeaderLease(bus, scheduler_id, self.leadership)
        self.standby = Standby(config, bus, self.leadership)
        self._turn = asyncio.Event()
        self._model: OpenModel | None = None
        self._subject = EVENT.subject(role="scheduler")
        self._standby_heard_at = float("-inf")
        self._num_returns = 0

    async def start(self) -> None:
        """Return when this scheduler leads, or stands by."""
        self._model = await open_admission(self._config)
        await serve(self._bus, self._subject, EVENT, self._event)
        await self._lease.look()
        if self.leadership.leads:
            await self._begin()
        else:
            await self._stand_by()

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return what runs as long as the service does."""
        return (  # Any: a coroutine's send type
            self._lease.loop(self._look),
            self._turn_loop(),
            self._tell_loop(),
        )

    async def stop(self) -> None:
        """Leave: to a standby if there is one."""
        term, self.term = self.term, None
        if term is None:
            await self._tell("leaving")
            await self.standby.stop()
            return
        if self._has_standby:
            # One that is stopped at the same time says so: then there is nobody to hand over to.
            await asyncio.sleep(_GOING_TOO_S)
        if self._has_standby and self.leadership.epoch:
            await term.hand_over()
        else:
            await term.drain()
        await self._lease.give_up()
        await self._tell("leaving")

    @property
    def _has_standby(self) -> bool:
        return time.monotonic() - self._standby_heard_at < _STANDBY_HEARD_S

    def _is_sure(self) -> bool:
        return self.leadership.is_sure(time.monotonic())

    def _look(self) -> None:
        """Notice what the lease says by now."""
        if self.term is not None and self._has_lost(self.term):
            self.term.end()
            self._turn.set()
        elif self.term is None and self.leadership.leads:
            self._turn.set()

    def _has_lost(self, term: Term) -> bool:
        return not self.leadership.leads or self.leadership.num_terms != term.number

    async def _turn_loop(self) -> None:
        while True:
            await self._turn.wait()
            self._turn.clear()
            if self.term is not None and self._has_lost(self.term):
                await self._step_down()
            elif self.term is None and self.leadership.leads:
                await self._begin()

    async def _begin(self) -> None:
        assert self._model is not None, "read at the start"
        number = self.leadership.num_terms

        def has_ended() -> bool:
            return self.leadership.num_terms != number or not self.leadership.leads

        bus = TermBus(self._bus, self._is_sure, has_ended)
        succession = Succession(lambda: self.leadership.epoch, self._was_succeeded)
        term = Term(self._config, bus, self._tracer, self._meter, self._model, succession)
        term.number = number
        try:
            await term.start(self.standby)
        except SlipstreamError as error:
            log.warning("term_not_begun", error=str(error))
            await term.close()
            await self._lease.give_up()
            await self._stand_by()
            return
        self.term = term
        log.info("leading", epoch=self.leadership.epoch, is_guarded=self.leadership.is_guarded)
        await self._tell("active")

    async def _step_down(self) -> None:
        term, self.term = self.term, None
        assert term is not None, "asked before"
        log.warning("stepped_down", highest_epoch=self.leadership.highest_seen)
        await term.close()
        await self._stand_by()

    async def _stand_by(self) -> None:
        self.standby.clear()
        await self.standby.start()
        log.info("standing_by")
        await self._tell("standby", is_new=True)

    def _was_succeeded(self) -> None:
        """Take a worker's word that somebody else leads."""
        self.leadership.lost(time.monotonic())
        self._look()

    async def _tell_loop(self) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            if self.term is not None and not self._is_sure():
                continue
            is_new = False
            num_returns = self._bus.connection.num_returns
            if num_returns != self._num_returns:
                # What was said meanwhile was missed: what is open is told anew.
                self._num_returns = num_returns
                is_new = self.term is None
            await self._tell("active" if self.term is not None else "standby", is_new=is_new)

    async def _tell(self, state: Any, *, is_new: bool = False) -> None:
        # Any: one of the message's literals
        message = SchedulerState(
            scheduler_id=self._scheduler_id,
            state=state,
            scheduler_epoch=self.leadership.epoch,
            is_new=is_new,
        )
        try:
            await self._bus.publish(self._subject, encode(message))
            await self._bus.flush()
        except SlipstreamError as error:
            log.warning("state_not_told", error=str(error))

    async def _event(self, message: Any, _incoming: Incoming) -> None:
        # Any: the topic's union
        now = time.monotonic()
        match message:
            case SchedulerState() if message.scheduler_id != self._scheduler_id:
                await self._heard(message, now)
            case RequestAdmitted() if self.term is None:
                self.standby.shadow.admitted(message, now)
            case RequestsSettled() if self.term is None:
                self.standby.shadow.settled(message, now)

    async def _heard(self, message: SchedulerState, now: float) -> None:
        match message.state:
            case "active":
                self.leadership.heard_active(now, message.scheduler_epoch)
            case "leaving":
                self._standby_heard_at = float("-inf")
                self.leadership.heard_leaving(now)
                self._lease.hurry()
            case "standby":
                self._standby_heard_at = now
                if message.is_new and self.term is not None:
                    desk = self.term.front.desk
                    attempts = {each.request_id: each.attempt for each in desk.records.values()}
                    await self.term.front.relay.tell_all(attempts)
