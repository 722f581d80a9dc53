"""Who waits for a lease to commit more, or to end."""

import asyncio
from collections import defaultdict

from slipstream.shared.ids import LeaseId


class LeaseWaits:
    """Wakes everybody who waits for a lease."""

    def __init__(self) -> None:
        self._waiting: defaultdict[LeaseId, set[asyncio.Future[None]]] = defaultdict(set)

    def moved(self, lease_id: LeaseId) -> None:
        """Wake those who wait: there is more to find, or no more to come."""
        for future in self._waiting.pop(lease_id, ()):
            if not future.done():
                future.set_result(None)

    async def wait(self, lease_id: LeaseId, timeout_s: float) -> None:
        """Return when a lease has moved, or after a while."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[lease_id].add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            waiting = self._waiting.get(lease_id, set())
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(lease_id, None)
