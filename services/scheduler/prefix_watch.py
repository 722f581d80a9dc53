"""Listen to what KV managers tell of their prefixes, and ask for all of it after a gap."""

import time
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import call_kv, serve
from slipstream.shared.bus.subjects import EVENT
from slipstream.shared.errors import NoRespondersError, ProtocolError, SlipstreamError
from slipstream.shared.ids import HostId
from slipstream.shared.messages.kv import Known, KnownBlocks, KvRefused
from slipstream.shared.messages.reports import KvEvent, PhaseEvent
from slipstream.shared.scheduling.prefix_map import PrefixMap

log = structlog.get_logger()

_MIN_BETWEEN_S = 1.0  # two questions for all that one host knows

Run = Callable[[Coroutine[Any, Any, None]], None]  # Any: a coroutine's send type


class PrefixWatch:
    """Keeps a map as the hosts are."""

    def __init__(
        self, bus: Bus, prefixes: PrefixMap, run: Run, on_resync: Callable[[], None]
    ) -> None:
        self._bus = bus
        self._prefixes = prefixes
        self._run = run
        self._on_resync = on_resync
        self._asked_at: dict[HostId, float] = {}  # a moment ago
        self._asking: set[HostId] = set()

    async def start(self) -> None:
        """Listen."""
        await serve(self._bus, EVENT.subject(role="kv"), EVENT, self._event)

    async def _event(self, message: KvEvent | PhaseEvent, _incoming: Incoming) -> None:
        if not isinstance(message, KvEvent):
            return
        self._prefixes.event(message)
        if self._prefixes.is_stale(message.host_id):
            self._ask_soon(message.host_id, time.monotonic())

    def _ask_soon(self, host_id: HostId, now: float) -> None:
        """Ask unless that was done just now: the next event, at most a second away, asks again."""
        self._asked_at = {
            each: at for each, at in self._asked_at.items() if now - at < _MIN_BETWEEN_S
        }
        if host_id not in self._asked_at and host_id not in self._asking:
            self._asked_at[host_id] = now
            self._asking.add(host_id)
            self._run(self._ask(host_id))

    async def _ask(self, host_id: HostId) -> None:
        try:
            await self._gather(host_id)
        except NoRespondersError:
            self._prefixes.forget(host_id)  # a last event of one that is gone
        except SlipstreamError as error:
            log.warning("prefixes_not_told", host_id=host_id, error=str(error))
        finally:
            self._asking.discard(host_id)

    async def _gather(self, host_id: HostId) -> None:
        """Ask for one range after another. Raises ProtocolError, and as `call_kv`."""
        if not self._prefixes.begin(host_id):
            return
        self._on_resync()
        first: int | None = 1
        while first is not None:
            answer: KnownBlocks | KvRefused = await call_kv(self._bus, host_id, Known(first))
            if isinstance(answer, KvRefused) or not self._prefixes.gather(answer):
                return
            last, first = first, answer.next_block_id
            if first is not None and first <= last:
                raise ProtocolError(f"after block {last} it goes on with block {first}")
