"""How requests travel: what the clients need of NATS and of HTTP."""

from collections.abc import AsyncGenerator
from typing import Protocol

from slipstream.shared.client.answers import Answer
from slipstream.shared.messages.generate import GenerateRequest


class Attempt(Protocol):
    """One try at one streamed request."""

    @property
    def answer(self) -> Answer | None:
        """The whole answer, once `pieces` has ended."""

    def pieces(self) -> AsyncGenerator[str, None]:
        """
        Send the request and yield its text.

        Closing it leaves nothing behind here. Raises SlipstreamErrors.
        """

    async def cancel(self) -> None:
        """End the request at the server, if that takes more than closing `pieces`. Bounded."""


class Transport(Protocol):
    """A connection to a server."""

    async def open(self) -> None:
        """Connect, where that comes before the first request. Raises ServerUnreachableError."""

    def attempt(self, request: GenerateRequest, timeout_s: float) -> Attempt:
        """Return a try at a streamed request that ends within so many seconds."""

    async def submit(self, request: GenerateRequest) -> str:
        """Store a request; return the key of its result."""

    async def fetch(self, key: str, wait_s: float) -> Answer | None:
        """Return the answer under a key, or None when there is none in time."""

    async def close(self) -> None:
        """Disconnect. Bounded."""
