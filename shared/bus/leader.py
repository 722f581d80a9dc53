"""Who leads: one entry that fades unless its owner writes it again, each write numbered."""

from typing import NamedTuple, Protocol

from slipstream.shared.bus.durable import StorageError

LEADER_KEY = "scheduler"
LEADER_TTL_S = 2.0  # after its last write the entry fades


class NoStorageError(StorageError):
    """The server stores nothing at all: more time does not help."""


class LeaderEntry(NamedTuple):
    """The entry as it is."""

    value: bytes
    revision: int


class LeaderStore(Protocol):
    """
    The leader bucket. Revisions only grow, also when the bucket was lost and made again.

    Everything raises StorageError when the storage can't be asked, and NoStorageError where there
    is none; what was asked for may have happened all the same.
    """

    async def create(self, value: bytes) -> int | None:
        """Write the entry if there is none, and return its revision; None if there is one."""

    async def update(self, value: bytes, revision: int) -> int | None:
        """Write it again if its revision is this one; return the new one, or None."""

    async def get(self) -> LeaderEntry | None:
        """Return the entry."""

    async def delete(self, revision: int) -> None:
        """Remove the entry if its revision is this one."""
