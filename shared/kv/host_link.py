"""
The Unix-domain connection of each worker to its host's KV manager.

End of file means that the process at the other end is gone: for the manager the proof that a lost
worker writes no more, for a worker the sign that its arena is void. Leases are renewed and released
here when NATS has no answer: both ends are on one host, and no trouble elsewhere may cost a block.
"""

import asyncio
import contextlib
import math
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any

import structlog

from slipstream.shared.errors import ArenaError, DisconnectedError, NoAnswerError, ProtocolError
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.kv import (
    ArenaHello,
    ArenaWelcome,
    KvRefused,
    Release,
    Released,
    Renew,
    Renewed,
)

log = structlog.get_logger()

SOCKET_NAME = "kv.sock"
# A manager that starts together with its workers is there by then.
_TELL_AFTER_S = 3.0
_CLOSE_S = 1.0
_LENGTH = struct.Struct("<I")
_MAX_LINE = 64 * 1024
_MAX_MESSAGE = 4 * 1024 * 1024  # a renewal of some ten thousand leases

LinkQuestion = Renew | Release
LinkAnswer = Renewed | Released | KvRefused
_MAX_SOCKET_PATH = 107  # bytes, of the kernel's sockaddr_un


def socket_path(directory: Path) -> Path:
    """Return the manager's socket. Raises ArenaError when the kernel can't take its path."""
    path = directory / SOCKET_NAME
    if len(str(path).encode()) > _MAX_SOCKET_PATH:
        raise ArenaError(f"{path} is too long for a Unix socket; choose a shorter --arena-dir")
    return path


async def send(
    writer: asyncio.StreamWriter, message: ArenaHello | ArenaWelcome | LinkQuestion | LinkAnswer
) -> None:
    """Write one message with its length in front."""
    payload = encode(message)
    writer.write(_LENGTH.pack(len(payload)) + payload)
    await writer.drain()


async def receive(
    reader: asyncio.StreamReader, kind: type[ArenaHello] | type[ArenaWelcome]
) -> ArenaHello | ArenaWelcome:
    """Read one message. Raises ProtocolError, asyncio.IncompleteReadError."""
    message: ArenaHello | ArenaWelcome = decoder_of(kind).decode(await _read(reader, _MAX_LINE))
    return message


async def receive_question(reader: asyncio.StreamReader) -> LinkQuestion:
    """Read what a worker asks. Raises as `receive`; asyncio.IncompleteReadError at its end."""
    question: LinkQuestion = decoder_of(LinkQuestion).decode(await _read(reader, _MAX_MESSAGE))
    return question


async def _read(reader: asyncio.StreamReader, max_num_bytes: int) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > max_num_bytes:
        raise ProtocolError(f"a message of {length} bytes is above {max_num_bytes}")
    return await reader.readexactly(length)


def _decode_answer(payload: bytes) -> Any:  # Any: a union; the codec checks at run time
    return decoder_of(LinkAnswer).decode(payload)


class HostLink:
    """A worker's end of the connection."""

    def __init__(
        self, welcome: ArenaWelcome, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.welcome = welcome
        self._reader = reader
        self._writer = writer
        self._is_gone = False
        # In the order of the questions; those that nobody waits for any more among them.
        self._asked: deque[asyncio.Future[LinkAnswer]] = deque()

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
        """Take the manager's answers in; return when its process has ended."""
        try:
            while True:
                answer: LinkAnswer = _decode_answer(await _read(self._reader, _MAX_MESSAGE))
                asked = self._asked.popleft()
                if not asked.done():
                    asked.set_result(answer)
        except (OSError, asyncio.IncompleteReadError, ProtocolError, IndexError) as error:
            log.info("kv_manager_gone", reason=str(error) or type(error).__name__)
        finally:
            self._is_gone = True
            for asked in self._asked:
                asked.cancel()

    async def ask(self, question: LinkQuestion, timeout_s: float) -> LinkAnswer:
        """Ask the manager without NATS. Raises NoAnswerError and DisconnectedError."""
        if self._is_gone:
            raise DisconnectedError("the socket of the KV manager")
        answer: asyncio.Future[LinkAnswer] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        try:
            async with asyncio.timeout(timeout_s):
                await send(self._writer, question)
                await asyncio.wait({answer})
        except TimeoutError as error:
            raise NoAnswerError("answer on the socket of the KV manager", timeout_s) from error
        except OSError as error:
            raise DisconnectedError("the socket of the KV manager") from error
        if answer.cancelled():
            raise DisconnectedError("the socket of the KV manager")
        return answer.result()

    async def close(self) -> None:
        """Hang up: the manager takes back everything that this worker still holds."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._writer.wait_closed()
        # A manager that stands still takes nothing that is left to send.
        self._writer.transport.abort()
