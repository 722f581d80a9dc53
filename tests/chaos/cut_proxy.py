"""A TCP proxy that a test cuts: connections break, and new ones wait until it is mended."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_CHUNK = 64 * 1024


class CutProxy:
    """Passes bytes on to one address while it is whole."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._target = (host, port)
        self._whole = asyncio.Event()
        self._whole.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Let nothing through; what is on its way is lost without a word to either end."""
        self._whole.clear()

    def mend(self) -> None:
        """Break the connections of before, as a network that is back does, and take new ones."""
        for writer in self._writers:
            writer.transport.abort()
        self._whole.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        task = asyncio.current_task()
        assert task is not None, "a server runs it in one"
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._whole.wait()
            other_reader, other_writer = await asyncio.open_connection(*self._target)
            self._writers |= {writer, other_writer}
            await asyncio.gather(
                self._pass_on(reader, other_writer), self._pass_on(other_reader, writer)
            )
            self._writers -= {writer, other_writer}
        writer.transport.abort()
        self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if self._whole.is_set():
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.transport.abort()

    def close(self) -> None:
        """Let go of every connection."""
        for task in self._tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def cuttable(host: str, port: int) -> AsyncIterator[CutProxy]:
    """A proxy while a block runs."""
    proxy = CutProxy(host, port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.close()
