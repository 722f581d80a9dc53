"""One streamed request as its reader sees it."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from slipstream.client.errors import ClientClosedError, UnfinishedStreamError
from slipstream.client.reading import Reading
from slipstream.client.transport import Transport
from slipstream.shared.client.answers import Answer

_CANCEL_S = 5.0


class AsyncStream:
    """
    The text of one request as it comes.

    The request is sent when its `async with` block is entered. Leaving the block before the end,
    however that comes about, cancels the request; `is_cancelled` says so.
    """

    def __init__(
        self, transport: Transport, reading: Reading, open_streams: "set[AsyncStream]"
    ) -> None:
        """`open_streams` are those that whoever closes the transport has to close first."""
        self.is_cancelled = False
        self._transport = transport
        self._reading = reading
        self._open_streams = open_streams
        # A task of its own reads: what is missing is asked for again while the reader is busy, and
        # a reader that is interrupted leaves the stream as it is.
        self._task: asyncio.Task[None] | None = None
        self._arrived: asyncio.Queue[str | None] = asyncio.Queue()

    @property
    def answer(self) -> Answer:
        """The whole answer. Raises UnfinishedStreamError before the end."""
        if self._reading.answer is None:
            raise UnfinishedStreamError
        return self._reading.answer

    @property
    def text(self) -> str:
        """The text that has come so far."""
        return self._reading.text

    @property
    def num_retries(self) -> int:
        """How often the request was sent again."""
        return self._reading.num_retries

    async def read(self) -> Answer:
        """Read the rest, and return the whole answer."""
        while await self.next_piece() is not None:
            pass
        return self.answer

    async def open(self) -> None:
        """Send the request; what `async with` does."""
        if self._task is not None:
            raise RuntimeError("a stream can be entered once; ask for another one")
        await self._transport.open()
        self._task = asyncio.create_task(self._read(), name="slipstream-stream")
        self._task.add_done_callback(self._ended)
        self._open_streams.add(self)

    async def next_piece(self) -> str | None:
        """Return the next text, or None at the end; what `async for` does."""
        if self._task is None:
            raise RuntimeError("a stream is read within its block: `with client.stream(...) as s:`")
        piece = await self._arrived.get()
        if piece is not None:
            return piece
        self._arrived.put_nowait(None)  # the end stays the end
        if self._task.cancelled():
            raise ClientClosedError
        await self._task  # raises what ended the stream
        return None

    async def close(self) -> None:
        """Cancel the request unless it has ended. Bounded; may be called again."""
        task = self._task
        if task is None or task.done():
            return
        self.is_cancelled = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_S):
                    await self._reading.cancel()
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        piece = await self.next_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _read(self) -> None:
        async with contextlib.aclosing(self._reading.pieces()) as pieces:
            async for piece in pieces:
                self._arrived.put_nowait(piece)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._open_streams.discard(self)
        if not task.cancelled():
            task.exception()  # whoever reads hears of it; whoever has left need not
        self._arrived.put_nowait(None)
