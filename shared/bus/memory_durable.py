"""Durable queue and results in memory, with JetStream's rules; time passes when a test says so."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slipstream.shared.bus.durable import (
    MESSAGE_ID,
    DurableLimits,
    QueueCounts,
    StorageError,
    Stored,
    StoredLetter,
    TooLargeToStoreError,
)
from slipstream.shared.bus.subjects import DEAD, PREFIX


@dataclass(eq=False)
class MemoryMessage:
    """One message of the queue."""

    owner: "MemoryQueue"
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    sequence: int
    num_deliveries: int = 0
    age_s: float = 0.0
    num_kept: int = 0
    delays_s: list[float] = field(default_factory=list)  # with which it was put back
    is_acked: bool = False

    async def ack(self) -> None:
        """Remove it."""
        self.owner.check()
        self.owner.taken.pop(self.sequence, None)
        self.is_acked = True

    async def retry(self, delay_s: float = 0.0) -> None:
        """Put it back: at once, whatever the delay, which is noted."""
        self.owner.check()
        self.delays_s.append(delay_s)
        if self.owner.taken.pop(self.sequence, None) is not None:
            self.owner.waiting.append(self)
            self.owner.changed.set()

    async def keep(self) -> None:
        """Count it."""
        self.owner.check()
        self.num_kept += 1


@dataclass(eq=False)
class MemoryQueue:
    """Messages that wait, and those that are taken."""

    waiting: list[MemoryMessage] = field(default_factory=list)
    taken: dict[int, MemoryMessage] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_broken: bool = False

    def check(self) -> None:
        """Raise StorageError while a test has it broken."""
        if self.is_broken:
            raise StorageError("broken by the test")

    async def take(self, timeout_s: float) -> MemoryMessage | None:
        """Return the next message."""
        self.check()
        try:
            async with asyncio.timeout(timeout_s):
                while not self.waiting:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return None
        message = self.waiting.pop(0)
        message.num_deliveries += 1
        self.taken[message.sequence] = message
        return message

    async def counts(self) -> QueueCounts:
        """Return how many there are."""
        self.check()
        return QueueCounts(len(self.waiting), len(self.taken))

    def lose_takers(self) -> None:
        """Give back what is taken, as the server does after `redelivery_s` of silence."""
        self.waiting += self.taken.values()
        self.taken.clear()
        self.changed.set()


@dataclass(eq=False)
class MemoryResults:
    """A dictionary with the bucket's protocol."""

    entries: dict[str, Stored] = field(default_factory=dict)
    is_broken: bool = False
    _revisions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def create(self, key: str, value: bytes, headers: Mapping[str, str]) -> bool:
        """Write a result where there is none."""
        if self.is_broken:
            raise StorageError("broken by the test")
        if key in self.entries:
            return False
        self.entries[key] = Stored(value, dict(headers), next(self._revisions))
        return True

    async def get(self, key: str) -> Stored | None:
        """Return a result."""
        if self.is_broken:
            raise StorageError("broken by the test")
        return self.entries.get(key)

    async def discard(self, key: str, stored: Stored) -> bool:
        """Remove a result."""
        if self.is_broken:
            raise StorageError("broken by the test")
        found = self.entries.get(key)
        if found is None or found.revision != stored.revision:
            return False
        del self.entries[key]
        return True


class MemoryDeadLetters:
    """A list with the stream's protocol."""

    def __init__(self, letters: list[MemoryMessage]) -> None:
        self._letters = letters

    async def after(self, sequence: int) -> StoredLetter | None:
        """Return the first one behind a number."""
        later = [each for each in self._letters if each.sequence > sequence]
        return _as_letter(later[0]) if later else None

    async def get(self, sequence: int) -> StoredLetter | None:
        """Return one by its number."""
        found = [each for each in self._letters if each.sequence == sequence]
        return _as_letter(found[0]) if found else None

    async def drop(self, sequence: int) -> None:
        """Remove one."""
        self._letters[:] = [each for each in self._letters if each.sequence != sequence]

    async def last_sequence(self) -> int:
        """Return the number of the newest, as far as it is there."""
        return max((each.sequence for each in self._letters), default=0)


def _as_letter(message: MemoryMessage) -> StoredLetter:
    return StoredLetter(message.sequence, message.payload, message.age_s)


class MemoryDurable:
    """What the in-memory buses of one test share."""

    def __init__(self) -> None:
        self.queue = MemoryQueue()
        self.results = MemoryResults()
        self.limits: DurableLimits | None = None
        self.num_ensured = 0
        self.dead: list[MemoryMessage] = []
        self.dead_letters = MemoryDeadLetters(self.dead)
        self._sequences = itertools.count(1)
        self._sequence_of: dict[str, int] = {}  # by message id

    async def ensure(self, limits: DurableLimits) -> None:
        """Take note of the limits."""
        self.limits = limits
        self.num_ensured += 1

    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> int:
        """Store a message: on the queue, or with the dead letters."""
        self.queue.check()
        if self.limits is not None and len(payload) > self.limits.max_message_bytes:
            raise TooLargeToStoreError(len(payload), self.limits.max_message_bytes)
        headers = dict(headers or {})
        message_id = headers.get(MESSAGE_ID)
        if message_id in self._sequence_of:
            return self._sequence_of[message_id]
        sequence = next(self._sequences)
        if message_id is not None:
            self._sequence_of[message_id] = sequence
        message = MemoryMessage(self.queue, subject, payload, headers, sequence)
        if subject.startswith(f"{PREFIX}.{DEAD.name}."):
            self.dead.append(message)
        else:
            self.queue.waiting.append(message)
            self.queue.changed.set()
        return sequence
