"""nats-py's client, kept from deafness, from sockets left open and from servers without TLS."""

import asyncio
from typing import Any

import nats.errors
from nats.aio.client import Client


class NoTlsError(nats.errors.Error):
    """A server that offers no TLS, where it was asked for."""

    def __str__(self) -> str:
        return "the server offers no TLS"


class SturdyClient(Client):
    """
    A client that survives the late answer to a ping that nobody waits for any more.

    nats-py sets the result of a future that it has cancelled, which ends the task that reads: from
    then on the client is deaf, and says that it is connected. And it goes by what the server
    offers of TLS, which is decided by whoever stands between: this one speaks to no server in
    plain text where TLS was asked for.
    """

    def __init__(self, *, wants_tls: bool = False) -> None:
        super().__init__()
        self._wants_tls = wants_tls

    async def _process_info(
        self,
        info: dict[str, Any],  # Any: JSON
        initial_connection: bool = False,  # noqa: FBT001, FBT002 # theirs
    ) -> None:
        # Comes before anything is sent, when connecting and when reconnecting.
        if initial_connection and self._wants_tls and not info.get("tls_required"):
            raise NoTlsError
        await super()._process_info(info, initial_connection)

    async def _process_pong(self) -> None:
        pongs: list[asyncio.Future[Any]] = self._pongs  # Any: nobody looks at the result
        if pongs and pongs[0].done():
            pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def is_answered(self, timeout_s: float) -> bool:
        """Ask the server whether it is there; True also for a connection that breaks meanwhile."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_ping(answer)
                await answer
        except TimeoutError:
            return not self.is_connected
        except (nats.errors.Error, OSError):
            return True  # it is told by others
        return True

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException:
            self._abort()  # the next try has a socket of its own, and this one would stay open
            raise

    def _abort(self) -> None:
        # Closing waits until all is sent, which may be never.
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def give_up(self) -> None:
        """Break the connection, without waiting for what it has not sent yet, and make another."""
        self._abort()
        await self._process_op_err(nats.errors.StaleConnectionError())
