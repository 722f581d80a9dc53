"""Whether the server is there, what it refuses us, and a clock that stands still while it isn't."""

import asyncio
import contextlib
import time
from collections import OrderedDict

from slipstream.shared.errors import NotPermittedError

# Its settings may be mended and read again: what was refused so long ago is tried anew.
_REFUSED_S = 30.0
_MAX_NUM_REFUSED = 256


class Connection:
    """
    The state of a bus's connection, as everybody who draws conclusions from silence has to know it.

    While we are cut off, nobody else is silent, no client is gone and no time is over.
    """

    def __init__(self) -> None:
        self.is_up = True
        self.num_returns = 0
        self._up = asyncio.Event()
        self._up.set()
        self._lost_at = 0.0
        self._back_at = float("-inf")
        self._away_s = 0.0  # all outages so far, the present one left out
        self._refused: OrderedDict[str, float] = OrderedDict()

    def lost(self) -> None:
        """Take note that the server can't be reached. Repeatable."""
        if self.is_up:
            self.is_up = False
            self._up.clear()
            self._lost_at = time.monotonic()

    def back(self) -> None:
        """Take note that it can be reached again. Repeatable."""
        if not self.is_up:
            self.is_up = True
            self.num_returns += 1
            self._back_at = time.monotonic()
            self._away_s += self._back_at - self._lost_at
            self._up.set()

    def now(self) -> float:
        """Return seconds of a clock that never goes back, and stands still while we are cut off."""
        return (time.monotonic() if self.is_up else self._lost_at) - self._away_s

    def is_settled(self, grace_s: float) -> bool:
        """Tell whether we have been connected for so long: by then others are back, too."""
        return self.is_up and time.monotonic() - self._back_at >= grace_s

    async def wait_up(self, timeout_s: float) -> bool:
        """Wait until the server can be reached; False when it can't within so many seconds."""
        if not self.is_up:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._up.wait()
        return self.is_up

    def refused(self, subject: str) -> None:
        """Take note that the server doesn't let us publish on a subject."""
        self._refused[subject] = time.monotonic()
        self._refused.move_to_end(subject)
        if len(self._refused) > _MAX_NUM_REFUSED:
            self._refused.popitem(last=False)

    def check_permitted(self, subject: str) -> None:
        """Raise NotPermittedError where the server has lately refused to take such a message."""
        if not self._refused:
            return
        refused_at = self._refused.get(subject)
        if refused_at is None:
            return
        if time.monotonic() - refused_at < _REFUSED_S:
            raise NotPermittedError("publish on", subject)
        del self._refused[subject]
