"""Leaving on purpose: take no more, finish what is held, end."""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

from slipstream.shared.errors import ServiceDrainedError

_LOOK_S = 0.05
# After the last work: for reports that tell of it, and readers that missed an ending.
_REST_S = 1.0


class Draining:
    """Whether a worker was told to leave; `begin` is repeatable."""

    def __init__(self, stop_accepting: Callable[[], None], num_held: Callable[[], int]) -> None:
        self._stop_accepting = stop_accepting
        self._num_held = num_held
        self._is_asked = asyncio.Event()

    def begin(self) -> None:
        """Take no more from now on."""
        self._stop_accepting()
        self._is_asked.set()

    async def wait_drained(self) -> NoReturn:
        """Raise ServiceDrainedError when the worker was told to leave and holds nothing."""
        await self._is_asked.wait()
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < _REST_S:
            await asyncio.sleep(_LOOK_S)
            if self._num_held():
                idle_since = time.monotonic()
        raise ServiceDrainedError
