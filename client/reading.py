"""One request over as many tries as it takes; its text comes once."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator

import msgspec

from slipstream.client.retries import Retries
from slipstream.client.seam import Seam
from slipstream.client.transport import Attempt, Transport
from slipstream.shared.client.answers import Answer
from slipstream.shared.errors import DeadlineExceededError, NoAnswerError, SlipstreamError
from slipstream.shared.messages.generate import GenerateRequest

_SERVER_ROOM_S = 1.0


class Reading:
    """Tries, waits, and tries again; what was yielded is never yielded again."""

    def __init__(
        self, transport: Transport, request: GenerateRequest, retries: Retries, timeout_s: float
    ) -> None:
        self.answer: Answer | None = None
        self.num_retries = 0
        self._transport = transport
        self._request = request
        self._retries = retries
        self._timeout_s = timeout_s
        self._attempt: Attempt | None = None
        self._seam = Seam()

    @property
    def text(self) -> str:
        """The text so far."""
        return self._seam.text

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the text as it comes. Raises the error of the last try."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            try:
                async with contextlib.aclosing(self._one_try(deadline_s)) as pieces:
                    async for piece in pieces:
                        yield piece
            except SlipstreamError as error:
                pause_s = self._pause_s(error, deadline_s)
                if pause_s is None and _is_our_deadline(error):
                    raise DeadlineExceededError("end of the answer", self._timeout_s) from error
                if pause_s is None:
                    raise
            else:
                return
            await self.cancel()
            await asyncio.sleep(pause_s)
            self.num_retries += 1

    async def cancel(self) -> None:
        """End what the server may still do for the last try. Bounded."""
        if self._attempt is not None:
            await self._attempt.cancel()

    async def _one_try(self, deadline_s: float) -> AsyncGenerator[str, None]:
        left_s = deadline_s - asyncio.get_running_loop().time()
        # Told to the server too, which decides by it. It has a little longer: whose time is over
        # hears so from here, by one error.
        deadline_ms = max(1, math.ceil(1000 * (left_s + _SERVER_ROOM_S)))
        request = msgspec.structs.replace(self._request, stream=True, deadline_ms=deadline_ms)
        attempt = self._attempt = self._transport.attempt(request, left_s)
        self._seam.begin()
        async with contextlib.aclosing(attempt.pieces()) as pieces:
            async for piece in pieces:
                if new := self._seam.take(piece):
                    yield new
        self._seam.end()
        self.answer = attempt.answer

    def _pause_s(self, error: SlipstreamError, deadline_s: float) -> float | None:
        """Return how long to wait before the next try; None where the error stands."""
        if not self._seam.is_empty and self._request.speculation_mode == "rejection":
            return None  # its tokens depend on the drafts too: a repeat would say something else
        pause_s = self._retries.pause_s(error, self.num_retries + 1)
        left_s = deadline_s - asyncio.get_running_loop().time()
        return pause_s if pause_s is not None and pause_s < left_s else None


def _is_our_deadline(error: SlipstreamError) -> bool:
    """Tell whether a try ended with its time: its message knows only what was left of it."""
    return isinstance(error, DeadlineExceededError) and not isinstance(error, NoAnswerError)
