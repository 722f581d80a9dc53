"""The bus as an active scheduler sees it: nothing leaves unless the lease says that it leads."""

import asyncio
import time
from collections.abc import Callable, Mapping

from slipstream.shared.bus.bus import Bus, Handler, Incoming, Registry, Subscription
from slipstream.shared.bus.connection import Connection
from slipstream.shared.bus.durable import Durable
from slipstream.shared.bus.endpoints import Endpoint
from slipstream.shared.bus.leader import LeaderStore
from slipstream.shared.errors import SlipstreamError

_LOOK_S = 0.02
_DOUBT_S = 600.0  # NATS may be away for long; then what is held back is worth nothing


class TermOverError(SlipstreamError):
    """Another scheduler leads by now: what this one had to say is not for it to say."""

    code = "term_over"

    def __init__(self) -> None:
        super().__init__("this scheduler is no longer the active one")


class TermBus:
    """
    One term's share of a connection; closing it ends its subscriptions, not the connection.

    In doubt, as after being frozen, whoever sends waits until it is known who leads.
    """

    def __init__(
        self, inner: Bus, is_sure: Callable[[], bool], has_ended: Callable[[], bool]
    ) -> None:
        self._inner = inner
        self._is_sure = is_sure
        self._has_ended = has_ended
        self._is_over = False
        self._subscriptions: list[Subscription] = []
        self.endpoints: list[Endpoint] = inner.endpoints
        self._num_endpoints = len(inner.endpoints)

    @property
    def max_payload(self) -> int:
        """As of the connection."""
        return self._inner.max_payload

    @property
    def connection(self) -> Connection:
        """Whether the server is there."""
        return self._inner.connection

    def end(self) -> None:
        """Let nothing through any more."""
        self._is_over = True

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send, if we lead. Raises TermOverError, and as `Bus`."""
        if self._is_over or self._has_ended() or not self._is_sure():
            await self._until_sure()
        await self._inner.publish(subject, payload, reply=reply, headers=headers)

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Incoming:
        """Ask, if we lead. Raises TermOverError, and as `Bus`."""
        if self._is_over or self._has_ended() or not self._is_sure():
            await self._until_sure()
        return await self._inner.request(subject, payload, timeout_s=timeout_s, headers=headers)

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Listen until the term is over."""
        if self._is_over:
            raise TermOverError
        subscription = await self._inner.subscribe(subject, handler, queue=queue)
        self._subscriptions.append(subscription)
        return subscription

    def new_inbox(self) -> str:
        """Return a subject that only this client listens on."""
        return self._inner.new_inbox()

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Wait until the server has everything."""
        await self._inner.flush(timeout_s)

    def registry(self) -> Registry:
        """Return the bucket of worker records."""
        return self._inner.registry()

    def durable(self) -> Durable:
        """Return submissions and results: there the first ending wins, whoever writes it."""
        return self._inner.durable()

    def leader(self) -> LeaderStore:
        """Return the leader bucket."""
        return self._inner.leader()

    async def close(self, timeout_s: float = 2.0) -> None:
        """End the subscriptions; bounded."""
        self._is_over = True
        del self.endpoints[self._num_endpoints :]
        stops = [asyncio.create_task(each.stop()) for each in self._subscriptions]
        if stops:
            await asyncio.wait(stops, timeout=timeout_s)

    async def _until_sure(self) -> None:
        give_up_at = time.monotonic() + _DOUBT_S
        while not (self._is_over or self._has_ended()) and time.monotonic() < give_up_at:
            if self._is_sure():
                return
            await asyncio.sleep(_LOOK_S)
        raise TermOverError
