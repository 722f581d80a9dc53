"""What outlives its sender: a queue of submissions, and the results that are kept for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from slipstream.shared.errors import SlipstreamError

BODY_DIGEST = "Slipstream-Body-Digest"  # header of a result: which body it is the ending of
MESSAGE_ID = "Nats-Msg-Id"  # a second message with the same one is dropped, for two minutes


class StorageError(SlipstreamError):
    """The server's storage can't be reached, or does not take what it was given."""

    code = "storage_unavailable"


class TooLargeToStoreError(StorageError):
    """A message is larger than the server stores: trying again does not help."""

    code = "message_too_large"

    def __init__(self, num_bytes: int, limit: int) -> None:
        self.num_bytes = num_bytes
        self.limit = limit
        super().__init__(f"a message of {num_bytes} bytes is above the limit of {limit} bytes")


@dataclass(frozen=True, kw_only=True)
class DurableLimits:
    """What may be stored, and for how long. The defaults are those of the scheduler's settings."""

    redelivery_s: float = 30.0  # silence after which a taken message is given to another taker
    max_num_queued: int = 100_000
    max_queued_bytes: int = 64 * 2**20
    max_message_bytes: int = 2**20
    result_keep_s: float = 86_400.0
    max_result_bytes: int = 128 * 2**20
    dead_keep_s: float = 604_800.0
    max_dead_bytes: int = 16 * 2**20


class QueueCounts(NamedTuple):
    """How many messages are in the queue."""

    num_waiting: int  # nobody has taken them
    num_taken: int  # taken and not acknowledged, or put back for later


class Stored(NamedTuple):
    """A result as it was written."""

    value: bytes
    headers: Mapping[str, str]
    revision: int = 0  # another one for each that was ever written under its key


class StoredLetter(NamedTuple):
    """A dead letter as it lies in its stream."""

    sequence: int  # its number there
    payload: bytes  # a `DeadLetter`
    age_s: float


class DurableMessage(Protocol):
    """
    A message that comes again until it is acknowledged.

    It is its taker's until `redelivery_s` have passed since it was taken or last kept.
    """

    @property
    def subject(self) -> str:
        """Where it was published."""

    @property
    def payload(self) -> bytes:
        """Its bytes."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What its publisher wrote beside it."""

    @property
    def sequence(self) -> int:
        """Its number in the queue, which its publisher was told."""

    @property
    def num_deliveries(self) -> int:
        """How often it was taken, this time included."""

    @property
    def age_s(self) -> float:
        """Seconds since it was published, by the clocks of server and taker."""

    async def ack(self) -> None:
        """Remove it for good, and know that it is. Raises StorageError; then it may come again."""

    async def retry(self, delay_s: float = 0.0) -> None:
        """Put it back; it comes again after the delay. Raises StorageError."""

    async def keep(self) -> None:
        """Say that it is still being worked on. Raises StorageError."""


class DurableQueue(Protocol):
    """The work queue of submissions; all its takers share it."""

    async def take(self, timeout_s: float) -> DurableMessage | None:
        """Return the next message, or None when none came in time. Raises StorageError."""

    async def counts(self) -> QueueCounts:
        """Return how many messages there are. Raises StorageError."""


class ResultStore(Protocol):
    """The bucket of results. What is written stays as it is until its time is over."""

    async def create(self, key: str, value: bytes, headers: Mapping[str, str]) -> bool:
        """Write a result; False when the key has one already. Raises StorageError."""

    async def get(self, key: str) -> Stored | None:
        """Return a result. Raises StorageError."""

    async def discard(self, key: str, stored: Stored) -> bool:
        """Make room for another result; False when it is another one already."""


class DeadLetters(Protocol):
    """The stream of dead letters. All raise StorageError."""

    async def after(self, sequence: int) -> StoredLetter | None:
        """Return the first one behind a number; None when there is none."""

    async def get(self, sequence: int) -> StoredLetter | None:
        """Return one by its number."""

    async def drop(self, sequence: int) -> None:
        """Remove one; nothing happens when it is gone already."""

    async def last_sequence(self) -> int:
        """Return the number of the newest that ever was."""


class Durable(Protocol):
    """The durable side of a bus. Every wait has a deadline."""

    @property
    def queue(self) -> DurableQueue:
        """The queue of submissions."""

    @property
    def results(self) -> ResultStore:
        """The results."""

    @property
    def dead_letters(self) -> DeadLetters:
        """What could not be served."""

    async def ensure(self, limits: DurableLimits) -> None:
        """
        Make queue, results and the stream of dead letters, or bring them to these limits.

        Raises ConfigurationError where what is there can't become what is wanted, and StorageError.
        """

    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> int:
        """
        Have a message stored; return its sequence.

        Raises TooLargeToStoreError, and StorageError for what more time may mend.
        """
