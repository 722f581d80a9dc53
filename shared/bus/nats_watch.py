"""Find out within seconds that the server, or the way to it, is silent."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from slipstream.shared.bus.connection import Connection
from slipstream.shared.bus.nats_client import SturdyClient

LOOK_S = 1.0
ANSWER_S = 2.0
# Then the connection is given up for a new one. Not before: what is only slow comes through whole,
# and a new connection has lost what was on its way.
_MAX_NUM_MISSES = 4


class ServerWatch:
    """
    Asks the server once a second.

    nats-py's own pings leave a silent connection standing for half a minute, and then it waits
    until the system has sent what nobody takes.
    """

    def __init__(
        self,
        client: SturdyClient,
        connection: Connection,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        # Any: fields of a line of the log
        self._client = client
        self._connection = connection
        self._tell = tell
        self._num_misses = 0

    async def run(self) -> None:
        """Look until the connection is closed for good."""
        while not self._client.is_closed:
            await asyncio.sleep(LOOK_S)
            if not self._client.is_connected:
                self._num_misses = 0  # it is told by others
                continue
            began = time.monotonic()
            if await self._client.is_answered(ANSWER_S):
                self._num_misses = 0
                self._connection.back()
            elif time.monotonic() - began < 2 * ANSWER_S:  # else it is we who were too busy
                await self._missed()

    async def _missed(self) -> None:
        self._num_misses += 1
        if self._num_misses == 1:
            self._connection.lost()
            self._tell("nats_silent", {"seconds": ANSWER_S})
        if self._num_misses >= _MAX_NUM_MISSES:
            self._num_misses = 0
            self._tell("nats_given_up", {"seconds": _MAX_NUM_MISSES * (LOOK_S + ANSWER_S)})
            await self._client.give_up()
