"""Two ends of a transfer without an arena, and a link between them that misbehaves on demand."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence

from slipstream.shared.kv.transfer.plane import FetchRequest, PlaneIdentity

LEASE = "lease"


def identity(name: str, block_bytes: int, layout: str = "layout-1") -> PlaneIdentity:
    return PlaneIdentity(name, 1, layout, "model-1", block_bytes)


class StandInSource:
    """Random blocks that the holder of `LEASE` may read; `asked` are the questions, twice each."""

    def __init__(
        self, num_blocks: int, block_bytes: int, name: str = "source", layout: str = "layout-1"
    ) -> None:
        self.identity = identity(name, block_bytes, layout)
        self.blocks = memoryview(random.Random(name).randbytes(num_blocks * block_bytes))
        self.generations = memoryview(bytearray(4 * num_blocks)).cast("I")
        for block_id in range(num_blocks):
            self.generations[block_id] = 100 + block_id
        self.asked: list[list[int]] = []
        self.on_question: Callable[[int], None] = lambda _number: None

    def may_read(
        self, lease_id: str, block_ids: Sequence[int], _generations: Sequence[int]
    ) -> str | None:
        self.asked.append(list(block_ids))
        self.on_question(len(self.asked))
        return None if lease_id == LEASE else "unknown_lease"

    def request(self, block_ids: Sequence[int], lease_id: str = LEASE) -> FetchRequest:
        generations = [100 + block_id for block_id in block_ids]
        return FetchRequest("transfer-1", lease_id, block_ids, generations)

    def block(self, block_id: int) -> bytes:
        size = self.identity.block_bytes
        return bytes(self.blocks[block_id * size : (block_id + 1) * size])


class Places:
    """Where blocks go to."""

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        self.memory = bytearray(num_blocks * block_bytes)
        whole = memoryview(self.memory)
        self.into = [whole[i * block_bytes : (i + 1) * block_bytes] for i in range(num_blocks)]

    def hold(self, source: StandInSource, block_ids: Sequence[int]) -> bool:
        return [bytes(place) for place in self.into] == [source.block(i) for i in block_ids]


class Link:
    """A proxy whose first connection cuts, flips a byte or stalls after so many bytes down."""

    def __init__(
        self,
        *,
        cut_after: int | None = None,
        flip_at: int | None = None,
        stall_at: int | None = None,
    ) -> None:
        self.cut_after, self.flip_at, self.stall_at = cut_after, flip_at, stall_at
        self.stalled = asyncio.Event()
        self.go_on = asyncio.Event()
        self.num_connections = 0
        self.num_bytes_down = 0
        self.address = ""
        self._target = ("", 0)

    @contextlib.asynccontextmanager
    async def to(self, target: str) -> AsyncIterator["Link"]:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        is_first = self.num_connections == 1
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        up = asyncio.create_task(self._pump(reader, far_writer, is_faulty=False))
        try:
            await self._pump(far_reader, writer, is_faulty=is_first, is_down=True)
        finally:
            up.cancel()
            writer.close()
            far_writer.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_faulty: bool,
        is_down: bool = False,
    ) -> None:
        position = 0
        with contextlib.suppress(OSError):
            while part := await reader.read(16 * 1024):
                if is_faulty and self._has(self.cut_after, position, part):
                    return
                if is_faulty and self._has(self.flip_at, position, part):
                    damaged = bytearray(part)
                    damaged[(self.flip_at or 0) - position] ^= 1
                    part = bytes(damaged)
                if is_faulty and self._has(self.stall_at, position, part):
                    self.stalled.set()
                    await self.go_on.wait()
                position += len(part)
                self.num_bytes_down += len(part) * is_down
                writer.write(part)
                await writer.drain()
            writer.close()

    @staticmethod
    def _has(where: int | None, position: int, part: bytes) -> bool:
        return where is not None and position <= where < position + len(part)
