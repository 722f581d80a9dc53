"""An inbox of the scheduler's own: answers of requests that it has opened for somebody."""

import asyncio
import itertools

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.subjects import last_token


class AnswerInbox:
    """Owns the answers that are waited for. Each subject gets one, and is forgotten."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._inbox = bus.new_inbox()
        self._numbers = itertools.count(1)
        self._expected: dict[str, asyncio.Future[bytes]] = {}

    async def start(self) -> None:
        """Listen."""
        await self._bus.subscribe(f"{self._inbox}.*", self._arrived)

    def expect(self) -> tuple[str, "asyncio.Future[bytes]"]:
        """Return a reply subject, and what will hold the bytes that are sent there."""
        number = str(next(self._numbers))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._expected[number] = answer
        answer.add_done_callback(lambda _answer: self._expected.pop(number, None))
        return f"{self._inbox}.{number}", answer

    async def _arrived(self, incoming: Incoming) -> None:
        answer = self._expected.get(last_token(incoming.subject))
        # A second ending, or one that nobody waits for any more, changes nothing.
        if answer is not None and not answer.done() and not incoming.is_no_responders:
            answer.set_result(incoming.payload)
