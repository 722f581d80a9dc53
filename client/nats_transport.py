"""Requests over NATS, straight to the scheduler."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from slipstream.client.errors import ClientClosedError, NoSchedulerError, ServerUnreachableError
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.durable import StorageError
from slipstream.shared.bus.nats_access import NO_ACCESS, NatsAccess
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.client import submissions
from slipstream.shared.client.answers import (
    Answer,
    AnswerStream,
    IncompleteStreamError,
    RequestFailedError,
    answer_of,
)
from slipstream.shared.errors import ConfigurationError, NoAnswerError, NoRespondersError
from slipstream.shared.messages.generate import GenerateRequest

log = logging.getLogger("slipstream.client")

CONNECT_S = 5.0
_CLOSE_S = 2.0
# A scheduler says at once that it has a request. Silence means that it died before it did, or that
# the message was lost with the server's connection.
UNHEARD_S = 10.0
_ID_S = 1.0  # how long a cancel waits to be told which request it is
_LOOK_S = 0.01


class ClientBus(NatsBus):
    """A bus that logs as libraries do: our services' logger would write to the caller's stdout."""

    def _log_line(
        self, level: str, event: str, fields: dict[str, Any]
    ) -> None:  # Any: of all types
        said = ", ".join(f"{name}: {value}" for name, value in fields.items())
        getattr(log, level)("%s (%s)", event, said)


class NatsAttempt:
    """One streamed request: gaps, silence and reconnects are mended by asking for the rest."""

    def __init__(self, bus: Bus, where: str, request: GenerateRequest, timeout_s: float) -> None:
        self._where = where
        self._stream = AnswerStream(bus, request, timeout_s=timeout_s)
        self._is_read = False

    @property
    def answer(self) -> Answer | None:
        """The whole answer, once there is one."""
        return self._stream.answer

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Send the request and yield its text; see `Attempt`."""
        self._is_read = True
        try:
            async with contextlib.aclosing(self._stream.pieces()) as pieces:
                if (first := await self._first(pieces)) is None:
                    return
                yield first
                async for piece in pieces:
                    yield piece
        except NoRespondersError as error:
            raise NoSchedulerError(self._where) from error
        except RequestFailedError as error:
            if error.code == "not_found":  # the answer to a Resume
                raise IncompleteStreamError("nobody knows the request any more") from error
            raise
        finally:
            self._is_read = False

    async def cancel(self) -> None:
        """End the request. Where its id is still on the way, wait for it a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ID_S):
                # The stream has no event for it.
                while self._stream.request_id is None and self._is_read:  # noqa: ASYNC110 - no event is set for it
                    await asyncio.sleep(_LOOK_S)
        await self._stream.cancel()

    async def _first(self, pieces: AsyncGenerator[str, None]) -> str | None:
        """Return the first text, or None at the end. Raises NoAnswerError where nobody speaks."""
        first = asyncio.create_task(_next(pieces))
        try:
            await asyncio.wait({first}, timeout=UNHEARD_S)
            if not first.done() and self._stream.request_id is None:
                raise NoAnswerError("word of the request", UNHEARD_S)
            return await first
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait({first})


async def _next(pieces: AsyncGenerator[str, None]) -> str | None:
    return await anext(pieces, None)


class BusTransport:
    """Requests over a bus that is connected when the first one comes."""

    def __init__(self, connect: Callable[[], Awaitable[Bus]], where: str) -> None:
        self._connect = connect
        self._where = where
        self._bus: Bus | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    async def open(self) -> None:
        """Connect."""
        async with self._opening:
            if self._is_closed:
                raise ClientClosedError
            if self._bus is None:
                self._bus = await self._connect()

    def attempt(self, request: GenerateRequest, timeout_s: float) -> NatsAttempt:
        """Return a try."""
        return NatsAttempt(self._connected, self._where, request, timeout_s)

    async def submit(self, request: GenerateRequest) -> str:
        """Store a request. Raises StorageError, and as `slipstream.shared.client.submissions`."""
        try:
            return await submissions.submit(self._connected.durable(), request)
        except StorageError as error:
            raise StorageError(
                f"{error} at {self._where}; submissions are stored once a scheduler has run there"
            ) from error

    async def fetch(self, key: str, wait_s: float) -> Answer | None:
        """Return what lies under a key."""
        found = await submissions.fetch(self._connected.durable(), key, wait_s)
        return None if found is None else answer_of(found)

    async def close(self) -> None:
        """Disconnect."""
        async with self._opening:
            self._is_closed = True
            bus, self._bus = self._bus, None
        if bus is not None:
            await bus.close(_CLOSE_S)

    @property
    def _connected(self) -> Bus:
        if self._bus is None:
            raise ClientClosedError
        return self._bus


def nats_transport(url: str, access: NatsAccess = NO_ACCESS) -> BusTransport:
    """Return the way over a NATS server."""

    async def connect() -> Bus:
        try:
            name = "slipstream-client"
            return await ClientBus.connect(url, name, access, connect_timeout_s=CONNECT_S)
        except ConfigurationError as error:
            raise ServerUnreachableError(url, _reason(error)) from error

    return BusTransport(connect, url)


def _reason(error: ConfigurationError) -> str:
    cause = error.__cause__
    return str(cause) or type(cause).__name__
