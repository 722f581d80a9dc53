"""
The Unix-domain connection of each worker to its host's KV manager.

End of file means that the process at the other end is gone: for the manager the proof that a lost
worker writes no more, for a worker the sign that its arena is void.
"""

import asyncio
import contextlib
import math
import struct
import time
from pathlib import Path

import structlog

from slipstream.shared.errors import ArenaError, ProtocolError
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.kv import ArenaHello, ArenaWelcome

log = structlog.get_logger()

SOCKET_NAME = "kv.sock"
# A manager that starts together with its workers is there by then.
_TELL_AFTER_S = 3.0
_LENGTH = struct.Struct("<I")
_MAX_LINE = 64 * 1024
_MAX_SOCKET_PATH = 107  # bytes, of the kernel's sockaddr_un


def socket_path(directory: Path) -> Path:
    """Return the manager's socket. Raises ArenaError when the kernel can't take its path."""
    path = directory / SOCKET_NAME
    if len(str(path).encode()) > _MAX_SOCKET_PATH:
        raise ArenaError(f"{path} is too long for a Unix socket; choose a shorter --arena-dir")
    return path


async def send(writer: asyncio.StreamWriter, message: ArenaHello | ArenaWelcome) -> None:
    """Write one message with its length in front."""
    payload = encode(message)
    writer.write(_LENGTH.pack(len(payload)) + payload)
    await writer.drain()


async def receive(
    reader: asyncio.StreamReader, kind: type[ArenaHello] | type[ArenaWelcome]
) -> ArenaHello | ArenaWelcome:
    """Read one message. Raises ProtocolError, asyncio.IncompleteReadError."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > _MAX_LINE:
        raise ProtocolError(f"a greeting of {length} bytes is above {_MAX_LINE}")
    message: ArenaHello | ArenaWelcome = decoder_of(kind).decode(await reader.readexactly(length))
    return message


class HostLink:
    """A worker's end of the connection."""

    def __init__(
        self, welcome: ArenaWelcome, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.welcome = welcome
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, directory: Path, hello: ArenaHello, timeout_s: float) -> "HostLink":
        """
        Greet the manager, waiting for one that is still starting.

        Raises ArenaError when none answers in time.
        """
        path = socket_path(directory)
        problem = "it isn't there"
        tell_at = time.monotonic() + _TELL_AFTER_S
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await cls._greet(path, hello)
                    except (OSError, asyncio.IncompleteReadError) as error:
                        problem = str(error) or type(error).__name__
                        if time.monotonic() > tell_at:
                            log.warning("kv_manager_awaited", path=str(path), problem=problem)
                            tell_at = math.inf  # once
                        await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise ArenaError(
                f"no KV manager answers at {path} ({problem}); start `slipstream kv` with the same "
                "--arena-dir"
            ) from error

    @classmethod
    async def _greet(cls, path: Path, hello: ArenaHello) -> "HostLink":
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            await send(writer, hello)
            welcome = await receive(reader, ArenaWelcome)
        except BaseException:
            writer.close()
            raise
        assert isinstance(welcome, ArenaWelcome), "the decoder returns what it was asked for"
        return cls(welcome, reader, writer)

    async def wait_gone(self) -> None:
        """Return when the manager's process has ended."""
        while await self._reader.read(4096):
            pass

    async def close(self) -> None:
        """Hang up: the manager takes back everything that this worker still holds."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
