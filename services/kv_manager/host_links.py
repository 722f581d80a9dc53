"""The manager's end of the workers' Unix-domain connections."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from slipstream.shared.errors import ProtocolError
from slipstream.shared.ids import WorkerId
from slipstream.shared.kv.host_link import receive, send, socket_path
from slipstream.shared.messages.kv import ArenaHello, ArenaWelcome

log = structlog.get_logger()

_GREETING_S = 5.0


class HostLinks:
    """Accept workers, tell them the arena, and report when their process has ended."""

    def __init__(
        self,
        directory: Path,
        welcome: ArenaWelcome,
        on_joined: Callable[[WorkerId, int], None],
        on_gone: Callable[[WorkerId, int], None],
    ) -> None:
        self._path = socket_path(directory)
        self._welcome = welcome
        self._on_joined = on_joined
        self._on_gone = on_gone
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
            while await reader.read(4096):
                pass
        except (TimeoutError, OSError, ProtocolError, asyncio.IncompleteReadError) as error:
            log.info("worker_link_broken", error=str(error) or type(error).__name__)
        finally:
            self._writers.discard(writer)
            writer.close()
            if isinstance(hello, ArenaHello):
                self._on_gone(hello.worker_id, hello.worker_epoch)
