"""The serving side of the TCP plane: owned by the event loop, which copies nothing itself."""

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self

import structlog

from slipstream.shared.errors import ProtocolError
from slipstream.shared.kv.transfer.messages import FetchBlocks, Hello, Refused, Sent, ServerTakes
from slipstream.shared.kv.transfer.plane import (
    BlockSource,
    Deadline,
    TransferError,
    why_refused,
)
from slipstream.shared.kv.transfer.tcp_tls import secured
from slipstream.shared.kv.transfer.tcp_wire import (
    STALL_S,
    HungUpError,
    hang_up,
    prepare,
    pump_out,
    receive_message,
    send_message,
)
from slipstream.shared.kv.transfer.threads import run_to_its_end
from slipstream.shared.messages.codec import decoder_of

log = structlog.get_logger()

MAX_NUM_CONNECTIONS = 64
_MAX_NUM_REFUSALS = 16  # under way at a time; beyond it a connection is dropped without a word
_IDLE_S = 60.0  # longer than a client keeps an idle connection, so that it is the one to close
_LONGEST_ANSWER_S = 600.0
_ACCEPT_PAUSE_S = 0.1
_BACKLOG = 64


class TcpServer:
    """Listens, greets, and sends blocks of a source; see `start`."""

    def __init__(
        self,
        source: BlockSource,
        listening: socket.socket,
        max_num_connections: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._source = source
        self._tls = tls
        self._listening = listening
        host, port = listening.getsockname()[:2]
        # Where clients reach us; an IPv6 host stands in brackets.
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._max_num_connections = max_num_connections
        self._threads = ThreadPoolExecutor(max_num_connections, thread_name_prefix="kv-send")
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._accepting = asyncio.create_task(self._accept())

    @classmethod
    async def start(
        cls,
        source: BlockSource,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        max_num_connections: int = MAX_NUM_CONNECTIONS,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """
        Listen; port 0 is any free one. With TLS a client without a certificate gets nothing.

        Raises OSError when the address can't be had.
        """
        loop = asyncio.get_running_loop()
        ((family, _, _, _, address), *_) = await loop.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        listening.settimeout(0)
        return cls(source, listening, max_num_connections, tls)

    async def stop(self) -> None:
        """Listen no more and hang up; returns when nothing reads the blocks any more."""
        tasks = [self._accepting, *self._connections]
        for task in tasks:
            task.cancel()
        # Each task has its own socket shut down, which ends its thread.
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()
        self._threads.shutdown(wait=False)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("kv_transfer_not_accepted", error=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)  # out of file descriptors, for one
                continue
            num_connections = len(self._connections)
            if num_connections >= self._max_num_connections + _MAX_NUM_REFUSALS:
                sock.close()
                continue
            has_room = num_connections < self._max_num_connections
            task = asyncio.create_task(self._own(sock, has_room=has_room))
            self._connections[task] = sock
            task.add_done_callback(self._connections.pop)

    async def _own(self, sock: socket.socket, *, has_room: bool) -> None:
        try:
            prepare(sock)
            async with asyncio.timeout(STALL_S):
                sock = await secured(sock, self._tls, is_server=True)
            if await self._greet(sock, has_room=has_room):
                while True:
                    await self._answer(sock)
        except (HungUpError, TimeoutError):
            return  # how a connection ends
        except (OSError, ProtocolError, TransferError) as error:
            log.info("kv_transfer_connection_lost", error=str(error) or type(error).__name__)
        finally:
            sock.close()

    async def _greet(self, sock: socket.socket, *, has_room: bool) -> bool:
        hello = await receive_message(sock, decoder_of(ServerTakes), STALL_S)
        if not isinstance(hello, Hello):
            raise ProtocolError("a question before a greeting")
        identity, deadline = self._source.identity, Deadline(STALL_S)
        if (mismatch := identity.mismatch(hello)) is not None:
            await send_message(sock, Refused("incompatible", mismatch), deadline)
        elif not has_room:
            limit = f"{self._max_num_connections} connections are open"
            await send_message(sock, Refused("busy", limit), deadline)
        else:
            await send_message(sock, identity.welcome(), deadline)
            return True
        return False

    async def _answer(self, sock: socket.socket) -> None:
        fetch = await receive_message(sock, decoder_of(ServerTakes), _IDLE_S)
        if not isinstance(fetch, FetchBlocks):
            raise ProtocolError("a second greeting")
        deadline = Deadline(min(max(fetch.deadline_ms, 1) / 1000, _LONGEST_ANSWER_S))
        refusal = why_refused(self._source, fetch)
        if refusal is None:
            await run_to_its_end(
                self._threads,
                partial(pump_out, sock, self._source, fetch, deadline),
                partial(hang_up, sock),
            )
            # Once more, for the blocks that were handed out anew while they were sent.
            refusal = why_refused(self._source, fetch)
        if refusal is not None:
            end: Refused | Sent = Refused(*refusal, fetch.transfer_id)
        else:
            end = Sent(fetch.transfer_id, len(fetch.block_ids))
        await send_message(sock, end, deadline)
