"""The receiving side of the TCP plane: connections kept for reuse, blocks received by threads."""

import asyncio
import socket
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from slipstream.shared.errors import ProtocolError
from slipstream.shared.kv.transfer.messages import Refused, ServerSays, Welcome
from slipstream.shared.kv.transfer.plane import (
    Deadline,
    Fetched,
    FetchRequest,
    PlaneIdentity,
    TransferBrokenError,
    TransferIncompatibleError,
)
from slipstream.shared.kv.transfer.progress import Progress
from slipstream.shared.kv.transfer.tcp_server import TcpServer
from slipstream.shared.kv.transfer.tcp_tls import secured, why_distrusted
from slipstream.shared.kv.transfer.tcp_wire import (
    STALL_S,
    hang_up,
    prepare,
    pump_in,
    receive_message,
    send_message,
)
from slipstream.shared.kv.transfer.threads import run_to_its_end
from slipstream.shared.kv.transfer.trying import error_of, fetch_in_turn
from slipstream.shared.messages.codec import decoder_of

__all__ = ["TcpPlane", "TcpServer"]

MAX_NUM_FETCHES = 16  # at a time; the others wait for their turn, within their deadline
MAX_NUM_IDLE = 4  # connections kept for an address
IDLE_S = 30.0


class ConnectionPool:
    """Greeted connections that nobody uses at the moment, by address."""

    def __init__(
        self,
        identity: PlaneIdentity,
        *,
        idle_s: float = IDLE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._identity = identity
        self._tls = tls
        self._idle_s = idle_s
        self._idle: dict[str, list[tuple[float, socket.socket]]] = {}

    @property
    def num_idle(self) -> int:
        """Connections kept."""
        return sum(len(kept) for kept in self._idle.values())

    async def take(self, address: str, deadline: Deadline) -> socket.socket:
        """
        Return a greeted connection.

        Raises OSError, ProtocolError, TransferIncompatibleError.
        """
        kept = self._idle.get(address, [])
        while kept:
            _, sock = kept.pop()
            if _is_quiet(sock):
                return sock
            sock.close()
        return await self._connect(address, deadline)

    def put(self, address: str, sock: socket.socket) -> None:
        """Keep a connection whose last answer has come to its end."""
        self._drop_old()
        kept = self._idle.setdefault(address, [])
        if len(kept) >= MAX_NUM_IDLE:
            sock.close()
            return
        kept.append((time.monotonic(), sock))
        asyncio.get_running_loop().call_later(self._idle_s, self._drop_old)

    def close(self) -> None:
        """Hang up."""
        for kept in self._idle.values():
            for _, sock in kept:
                sock.close()
        self._idle.clear()

    def _drop_old(self) -> None:
        oldest = time.monotonic() - self._idle_s
        for address, kept in list(self._idle.items()):
            while kept and kept[0][0] <= oldest:
                kept.pop(0)[1].close()
            if not kept:
                del self._idle[address]

    async def _connect(self, address: str, deadline: Deadline) -> socket.socket:
        host, port = split_address(address)
        async with asyncio.timeout(deadline.left(STALL_S)):
            sock = await _open_first(host, port)
            try:
                sock = await secured(sock, self._tls, is_server=False)
                await self._greet(sock, deadline)
            except OSError as error:
                sock.close()
                if (reason := why_distrusted(error)) is not None:
                    raise TransferIncompatibleError(f"{address}: {reason}") from error
                raise
            except BaseException:
                sock.close()
                raise
        return sock

    async def _greet(self, sock: socket.socket, deadline: Deadline) -> None:
        await send_message(sock, self._identity.hello(), deadline)
        answer = await receive_message(sock, decoder_of(ServerSays), deadline.left(STALL_S))
        match answer:
            case Refused():
                raise error_of(answer)
            case Welcome() if (mismatch := self._identity.mismatch(answer)) is not None:
                raise TransferIncompatibleError(mismatch)
            case Welcome():
                return
            case _:
                raise ProtocolError(f"{answer} instead of a welcome")


class TcpPlane:
    """Fetches blocks over TCP; addresses are "host:port"."""

    def __init__(
        self,
        identity: PlaneIdentity,
        *,
        idle_s: float = IDLE_S,
        max_num_fetches: int = MAX_NUM_FETCHES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._identity = identity
        self._pool = ConnectionPool(identity, idle_s=idle_s, tls=tls)
        self._threads = ThreadPoolExecutor(max_num_fetches, thread_name_prefix="kv-receive")
        self._room = asyncio.Semaphore(max_num_fetches)
        self._in_use: set[socket.socket] = set()
        self._is_closed = False

    async def fetch(
        self, address: str, request: FetchRequest, into: Sequence[memoryview], deadline_s: float
    ) -> Fetched:
        """Copy blocks; see `TransferPlane`."""
        progress = Progress(request, into, self._identity)
        ask = partial(self._ask, address)
        return await fetch_in_turn(self._room, progress, ask, address, deadline_s)

    async def close(self) -> None:
        """End running transfers with TransferBrokenError and hang up."""
        self._is_closed = True
        for sock in self._in_use:
            hang_up(sock)
        self._pool.close()
        self._threads.shutdown(wait=False)

    async def _ask(self, address: str, progress: Progress, deadline: Deadline) -> None:
        self._check_open()
        sock = await self._pool.take(address, deadline)
        question = progress.next_question(deadline)
        self._in_use.add(sock)
        is_reusable = False
        try:
            await send_message(sock, question.fetch, deadline)
            self._check_open()  # its threads take no work afterwards
            end = await run_to_its_end(
                self._threads,
                partial(pump_in, sock, question, deadline),
                partial(hang_up, sock),
            )
            if isinstance(end, Refused):
                raise error_of(end)
            is_reusable = True
        except (OSError, ProtocolError):
            progress.keep(question)
            raise
        finally:
            self._in_use.discard(sock)
            if is_reusable and not self._is_closed:
                self._pool.put(address, sock)
            else:
                sock.close()
        progress.finish(question)

    def _check_open(self) -> None:
        if self._is_closed:
            raise TransferBrokenError("this plane is closed")


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[v6]:port". Raises ValueError for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{address!r} is no host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def _open_first(host: str, port: int) -> socket.socket:
    """Connect to the first address of a name that takes it. Raises OSError, the last one's."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problem: OSError = OSError(f"no address for {host}")
    for family, kind, protocol, _, where in found:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            problem = error  # no IPv6 here, for one
            continue
        try:
            prepare(sock)
            await loop.sock_connect(sock, where)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem


def _is_quiet(sock: socket.socket) -> bool:
    """Whether an idle connection is still open; nothing can have come on it."""
    try:
        sock.recv(1, 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_PEEK)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False
