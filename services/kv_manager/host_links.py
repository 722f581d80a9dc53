"""The manager's end of the workers' Unix-domain connections."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from slipstream.shared.errors import ProtocolError
from slipstream.shared.ids import WorkerId
from slipstream.shared.kv.host_link import (
    LinkAnswer,
    LinkQuestion,
    receive,
    receive_question,
    send,
    socket_path,
)
from slipstream.shared.messages.kv import ArenaHello, ArenaWelcome

log = structlog.get_logger()

_GREETING_S = 5.0


class HostLinks:
    """
    Accept workers, tell them the arena, and report when their process has ended.

    Meanwhile answer what they ask here because NATS is in trouble.
    """

    def __init__(
        self,
        directory: Path,
        welcome: ArenaWelcome,
        on_joined: Callable[[WorkerId, int], None],
        on_gone: Callable[[WorkerId, int], None],
        on_asked: Callable[[LinkQuestion], LinkAnswer],
    ) -> None:
        self._path = socket_path(directory)
        self._welcome = welcome
        self._on_joined = on_joined
        self._on_gone = on_gone
        self._on_asked = on_asked
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen; a socket left by a dead manager is replaced (the lock says it is dead)."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self._path))
        os.chmod(self._path, 0o600)  # noqa: PTH101 # Path.chmod would follow a link

    async def stop(self) -> None:
        """Hang up on everybody and remove the socket."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 1.0)
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        hello: ArenaHello | ArenaWelcome | None = None
        try:
            async with asyncio.timeout(_GREETING_S):
                hello = await receive(reader, ArenaHello)
                assert isinstance(hello, ArenaHello), "the decoder returns what it was asked for"
                # Before the welcome: whoever has it may ask for blocks.
                self._on_joined(hello.worker_id, hello.worker_epoch)
                await send(writer, self._welcome)
            log.info("worker_joined", joined_worker_id=hello.worker_id)
            await self._answer_all(hello.worker_id, reader, writer)
        except (TimeoutError, OSError, ProtocolError, asyncio.IncompleteReadError) as error:
            log.info("worker_link_broken", error=str(error) or type(error).__name__)
        finally:
            self._writers.discard(writer)
            writer.close()
            if isinstance(hello, ArenaHello):
                self._on_gone(hello.worker_id, hello.worker_epoch)

    async def _answer_all(
        self, worker_id: WorkerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer until the worker's end. Raises ProtocolError for what no worker may ask."""
        while True:
            try:
                question = await receive_question(reader)
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
                return
            if question.worker_id != worker_id:
                raise ProtocolError(f"{worker_id} asks in the name of {question.worker_id}")
            await send(writer, self._on_asked(question))
