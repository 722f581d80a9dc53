"""The leader bucket in memory. It fades when its test says so."""

from slipstream.shared.bus.durable import StorageError
from slipstream.shared.bus.leader import LeaderEntry


class MemoryLeaderStore:
    """A numbered entry."""

    def __init__(self) -> None:
        self.entry: LeaderEntry | None = None
        self.is_reachable = True
        self._revision = 0

    def fade(self) -> None:
        """Remove the entry as its age would."""
        self.entry = None

    async def create(self, value: bytes) -> int | None:
        """Write the entry if there is none."""
        self._check()
        return self._write(value) if self.entry is None else None

    async def update(self, value: bytes, revision: int) -> int | None:
        """Write it again if its revision is this one."""
        self._check()
        is_same = self.entry is not None and self.entry.revision == revision
        return self._write(value) if is_same else None

    async def get(self) -> LeaderEntry | None:
        """Return the entry."""
        self._check()
        return self.entry

    async def delete(self, revision: int) -> None:
        """Remove the entry if its revision is this one."""
        self._check()
        if self.entry is not None and self.entry.revision == revision:
            self.entry = None

    def _check(self) -> None:
        if not self.is_reachable:
            raise StorageError("the leader bucket can't be reached")

    def _write(self, value: bytes) -> int:
        self._revision += 1
        self.entry = LeaderEntry(value, self._revision)
        return self._revision
