"""The small protocol through which services see the message bus."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec
import structlog

from slipstream.shared.bus.connection import Connection
from slipstream.shared.bus.durable import Durable
from slipstream.shared.bus.endpoints import Endpoint
from slipstream.shared.bus.leader import LeaderStore
from slipstream.shared.errors import MessageTooLargeError

log = structlog.get_logger()

# Publish acknowledgements, pings and the frame around a payload need a little room below the limit.
HEADER_ROOM = 4096


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """A message as it came."""

    subject: str
    payload: bytes
    reply: str = ""
    headers: Mapping[str, str] | None = None

    @property
    def is_no_responders(self) -> bool:
        """Whether this is the server's word that nobody listens where we published."""
        return bool(self.headers) and (self.headers or {}).get("Status") == "503"


Handler = Callable[[Incoming], Awaitable[None]]


class Subscription(Protocol):
    """A running subscription."""

    async def stop(self) -> None:
        """Take no further message; those already here are handled."""


class Registry(Protocol):
    """The bucket of worker records: discovery only, never liveness."""

    async def ensure(self) -> bool:
        """Make the bucket, for those who may not; tell whether it was missing."""

    async def put(self, key: str, value: bytes) -> None:
        """Write an entry; it fades when it isn't written again."""

    async def delete(self, key: str) -> None:
        """Remove an entry."""

    async def entries(self) -> dict[str, bytes]:
        """Return all that is there now."""


class Bus(Protocol):
    """Publish, request and subscribe. Every wait has a deadline."""

    @property
    def max_payload(self) -> int:
        """Largest message the server takes, in bytes, headers included."""

    @property
    def connection(self) -> Connection:
        """Whether the server is there."""

    @property
    def endpoints(self) -> list[Endpoint]:
        """What is answered through this client, for whoever asks (`discovery.py`)."""

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """
        Send. Raises MessageTooLargeError before anything leaves.

        During a reconnect messages are held back; when there are too many, or the connection is
        closed for good, raises DisconnectedError. Raises NotPermittedError where the server has
        lately said no.
        """

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Incoming:
        """
        Send and wait for the one answer.

        Without a connection it waits for one first. Raises NoRespondersError at once when nobody
        listens, NoAnswerError when nobody answers in time, and what `publish` raises.
        """

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """
        Call the handler for each message, in the order of arrival up to its first await.

        Members of a queue group share the messages. A handler's exception is logged, never fatal.
        """

    def new_inbox(self) -> str:
        """Return a subject that only this client listens on."""

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Wait until the server has everything that was published so far."""

    def registry(self) -> Registry:
        """Return the bucket of worker records."""

    def durable(self) -> Durable:
        """Return what outlives its senders: submissions and their results."""

    def leader(self) -> LeaderStore:
        """Return the bucket that says which scheduler is active."""

    async def close(self, timeout_s: float = 2.0) -> None:
        """Finish what is being handled, send what is buffered, disconnect."""


def check_size(payload: bytes, headers: Mapping[str, str] | None, max_payload: int) -> None:
    """Raise MessageTooLargeError for what the server would answer by closing the connection."""
    room = HEADER_ROOM
    if headers:
        # Each line has a colon, a blank and an end of two characters.
        room = max(room, sum(len(name) + len(text.encode()) + 4 for name, text in headers.items()))
    limit = max_payload - room
    if len(payload) > limit:
        raise MessageTooLargeError(len(payload), limit)


async def run_handler(handler: Handler, message: Incoming) -> None:
    """Run a handler; its exception ends nothing but itself."""
    try:
        await handler(message)
    except Exception:
        log.exception("handler_failed", subject=message.subject)


async def wait_for_others(tasks: set["asyncio.Task[None]"], timeout_s: float) -> None:
    """Wait for tasks, but not for the one we run in: a handler may stop its own subscription."""
    others = tasks - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=timeout_s)


def cancel_others(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Cancel tasks, but not the one we run in."""
    for task in list(tasks):
        if task is not asyncio.current_task():
            task.cancel()
