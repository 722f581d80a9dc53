"""
The arena: a host's KV blocks in one shared-memory file, made by the KV manager, mapped by workers.

File: a header page, the table of generations (uint32 a block), then the blocks, page-aligned.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from slipstream.shared.errors import ArenaError
from slipstream.shared.ids import HostId
from slipstream.shared.kv.layout import KvLayout

_MAGIC = b"SLIPKV01"
_HEADER = struct.Struct(
    "<8sQIQ16sH"
)  # magic, epoch, num_blocks, block_bytes, host id, layout length
_MAX_LAYOUT_LENGTH = mmap.PAGESIZE - _HEADER.size
MODE = 0o600


def arena_path(directory: Path, epoch: int) -> Path:
    """Return where the arena of an epoch lies."""
    return directory / f"arena.{epoch}"


def _page_aligned(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass
class Arena:
    """
    A mapped arena.

    `generations` is the pool's table, written by the manager alone; `blocks` are the bytes of all
    blocks, each written only by the holder of its lease.
    """

    path: Path
    host_id: HostId
    epoch: int
    num_blocks: int  # the null block included
    block_bytes: int
    layout: str
    generations: memoryview  # uint32 [num_blocks]
    blocks: memoryview  # bytes [num_blocks * block_bytes]
    _map: mmap.mmap

    @classmethod
    def create(
        cls, directory: Path, host_id: HostId, epoch: int, num_blocks: int, layout: KvLayout
    ) -> Self:
        """
        Make and reserve a new arena.

        Every page is reserved now: on a full tmpfs a later write would be a SIGBUS inside a step.
        Raises ArenaError that names the size needed.
        """
        path = arena_path(directory, epoch)
        described = layout.fingerprint.encode()
        assert len(described) <= _MAX_LAYOUT_LENGTH, "the layout's name must fit the header page"
        size = _blocks_offset(num_blocks) + num_blocks * layout.block_bytes
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, MODE)
        except OSError as error:
            raise _not_made(directory, size, error) from error
        try:
            os.posix_fallocate(descriptor, 0, size)
            header = _HEADER.pack(
                _MAGIC, epoch, num_blocks, layout.block_bytes, host_id.encode(), len(described)
            )
            os.pwrite(descriptor, header + described, 0)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _not_made(directory, size, error) from error
        finally:
            os.close(descriptor)
        return cls.open(path, layout)

    @classmethod
    def open(cls, path: Path, layout: KvLayout) -> Self:
        """Map an arena. Raises ArenaError for a foreign, stale or truncated one."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise ArenaError(f"no KV arena at {path}: {error.strerror}") from error
        try:
            size = os.fstat(descriptor).st_size
            if size < mmap.PAGESIZE:
                raise ArenaError(f"{path} is no KV arena: {size} bytes")
            mapped = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        try:
            return cls._mapped(path, mapped, layout)
        except ArenaError:
            mapped.close()
            raise

    @classmethod
    def _mapped(cls, path: Path, mapped: mmap.mmap, layout: KvLayout) -> Self:
        magic, epoch, num_blocks, block_bytes, host_id, length = _HEADER.unpack_from(mapped)
        if magic != _MAGIC:
            raise ArenaError(f"{path} is no KV arena")
        start = _HEADER.size
        described = mapped[start : start + min(length, _MAX_LAYOUT_LENGTH)].decode(errors="replace")
        if described != layout.fingerprint or block_bytes != layout.block_bytes:
            raise ArenaError(
                f"{path} holds blocks as ({described}), this process works with "
                f"({layout.fingerprint}); run manager and workers on one model and version"
            )
        offset = _blocks_offset(num_blocks)
        if len(mapped) < offset + num_blocks * block_bytes:
            raise ArenaError(f"{path} is cut short: {len(mapped)} bytes")
        whole = memoryview(mapped)
        return cls(
            path=path,
            host_id=HostId(host_id.rstrip(b"\0").decode(errors="replace")),
            epoch=epoch,
            num_blocks=num_blocks,
            block_bytes=block_bytes,
            layout=described,
            generations=whole[mmap.PAGESIZE : mmap.PAGESIZE + 4 * num_blocks].cast("I"),
            blocks=whole[offset : offset + num_blocks * block_bytes],
            _map=mapped,
        )

    def close(self) -> None:
        """Unmap, unless somebody still looks at the bytes: then the process's end does."""
        self.generations.release()
        self.blocks.release()
        try:
            self._map.close()
        except BufferError:
            # A tensor over the blocks is alive; the kernel unmaps when it goes.
            return

    def remove(self) -> None:
        """Delete the file; mappings stay valid until they are closed."""
        self.path.unlink(missing_ok=True)


def _not_made(directory: Path, size: int, error: OSError) -> ArenaError:
    return ArenaError(
        f"the KV arena needs {size / 2**20:.0f} MiB in {directory} and can't have them "
        f"({error.strerror}); lower --kv-memory or enlarge that file system "
        "(in compose.yaml: the arena volume's size)"
    )


def _blocks_offset(num_blocks: int) -> int:
    return mmap.PAGESIZE + _page_aligned(4 * num_blocks)


def old_arenas(directory: Path) -> list[Path]:
    """Return arena files left in a directory."""
    return sorted(directory.glob("arena.*"))
