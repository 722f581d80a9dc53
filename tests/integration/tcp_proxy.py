"""A network between a service and its NATS server that can stall, be cut, or lose one direction."""

import asyncio
import contextlib
from typing import Literal
from urllib.parse import urlsplit

Direction = Literal["to_server", "to_client"]


class TcpProxy:
    """Passes bytes on, as long as it is told to."""

    def __init__(self, target_url: str) -> None:
        where = urlsplit(target_url)
        self._target = (str(where.hostname), where.port or 0)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._moving = asyncio.Event()
        self._moving.set()
        self._dropped: set[Direction] = set()
        self._is_cut = False
        self.url = ""

    async def start(self) -> "TcpProxy":
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = "nats://{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    def stall(self) -> None:
        """Pass nothing on, and close nothing, as a network does that is unplugged."""
        self._moving.clear()

    def drop(self, direction: Direction) -> None:
        """Lose all bytes that go one way."""
        self._dropped.add(direction)

    def cut(self) -> None:
        """Break all connections, and those that come."""
        self._is_cut = True
        self._break()

    def mend(self) -> None:
        """Pass on again. Of a connection that lost bytes nothing can be made: it is broken."""
        self._is_cut = False
        if self._dropped:
            self._dropped.clear()
            self._break()
        self._moving.set()

    async def stop(self) -> None:
        """Hang up."""
        if self._server is not None:
            self._server.close()
        self._break()
        self._moving.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _break(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "the server runs this in one"
        self._tasks.add(task)
        self._writers.add(writer)
        ends = [writer]
        try:
            if self._is_cut:
                return
            onward, forth = await asyncio.open_connection(*self._target)
            ends.append(forth)
            self._writers.add(forth)
            pumps = (
                self._pump(reader, forth, "to_server"),
                self._pump(onward, writer, "to_client"),
            )
            tasks = [asyncio.create_task(pump) for pump in pumps]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in tasks:
                    pump.cancel()
        except OSError:
            pass  # the server is down
        finally:
            for end in ends:
                self._writers.discard(end)
                end.transport.abort()
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._moving.wait()
                if direction not in self._dropped:
                    writer.write(data)
                    await writer.drain()
