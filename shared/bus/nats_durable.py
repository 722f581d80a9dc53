"""Durable queue and results on JetStream."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg

from slipstream.shared.bus import nats_topology, subjects
from slipstream.shared.bus.durable import (
    DurableLimits,
    QueueCounts,
    StorageError,
    Stored,
    StoredLetter,
    TooLargeToStoreError,
)

_CALL_S = 2.0  # what an answer of the server may take
_TOO_LARGE = 10054
_NO_MESSAGE = 10037
_NO_SUCH_SEQUENCE = 10043
_WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
_EXPECTED_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
_OPERATION = "KV-Operation"  # header of what stands for a deleted key


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (nats.errors.Error, TimeoutError) as error:
        reason = getattr(error, "description", None) or str(error) or type(error).__name__
        raise StorageError(f"{what}: {reason}") from error


class NatsMessage:
    """A message of the queue's consumer."""

    def __init__(self, message: Msg) -> None:
        self._message = message
        self.subject: str = message.subject
        self.payload: bytes = message.data
        self.headers: Mapping[str, str] = message.headers or {}
        self.sequence: int = message.metadata.sequence.stream
        self.num_deliveries: int = message.metadata.num_delivered
        self._published_at: float = message.metadata.timestamp.timestamp()

    @property
    def age_s(self) -> float:
        """Seconds since it was published."""
        return max(0.0, time.time() - self._published_at)

    async def ack(self) -> None:
        """Remove it, and wait for the server's word that it is gone."""
        with _translated(f"submission {self.sequence} was not acknowledged"):
            await self._message.ack_sync(timeout=_CALL_S)

    async def retry(self, delay_s: float = 0.0) -> None:
        """Put it back."""
        with _translated(f"submission {self.sequence} was not put back"):
            await self._message.nak(delay=delay_s)

    async def keep(self) -> None:
        """Keep it."""
        with _translated(f"submission {self.sequence} was not kept"):
            await self._message.in_progress()


class NatsQueue:
    """
    The queue's consumer, asked for one message at a time.

    nats-py asks for several by two requests, of which one may be left behind; what came for it
    would be ours without our knowing.
    """

    def __init__(self, client: Client, stream: JetStreamContext) -> None:
        self._client = client
        self._stream = stream
        # One for the life of the connection.
        self._subscription: JetStreamContext.PullSubscription | None = None

    async def take(self, timeout_s: float) -> NatsMessage | None:
        """Return the next message."""
        if not self._client.is_connected:
            # Requests would be held back, and all be answered when the server is there again.
            await asyncio.sleep(timeout_s)
            raise StorageError("there is no connection to NATS")
        with _translated("no submission could be asked for"):
            try:
                if self._subscription is None:
                    self._subscription = await self._stream.pull_subscribe_bind(
                        consumer=nats_topology.CONSUMER, stream=subjects.SUBMIT_STREAM
                    )
                (message,) = await self._subscription.fetch(1, timeout=timeout_s)
            except TimeoutError:
                return None
        return NatsMessage(message)

    async def counts(self) -> QueueCounts:
        """Return what the consumer says of itself."""
        with _translated("the queue of submissions could not be looked at"):
            info = await self._stream.consumer_info(subjects.SUBMIT_STREAM, nats_topology.CONSUMER)
        return QueueCounts(info.num_pending or 0, info.num_ack_pending or 0)


class NatsResults:
    """
    A bucket that every KV client can read.

    Written without nats-py's own class, which has no place for the headers that say which body a
    result belongs to: in one write with it they can't be lost.
    """

    def __init__(self, stream: JetStreamContext) -> None:
        self._stream = stream

    async def create(self, key: str, value: bytes, headers: Mapping[str, str]) -> bool:
        """Write a result where there is none, or where it was deleted."""
        with _translated(f"the result {key} was not stored"):
            found = await self._found(key)
            if found is not None and not _is_deleted(found):
                return False
            expected = {_EXPECTED_SEQUENCE: str(found.seq if found is not None else 0)}
            try:
                await self._stream.publish(
                    nats_topology.result_subject(key),
                    value,
                    headers={**headers, **expected},
                )
            except nats.js.errors.APIError as error:
                if error.err_code in _WRONG_LAST_SEQUENCE:
                    return False
                raise
        return True

    async def get(self, key: str) -> Stored | None:
        """Return a result."""
        with _translated(f"the result {key} could not be looked up"):
            found = await self._found(key)
        if found is None or _is_deleted(found):
            return None
        return Stored(found.data or b"", found.headers or {}, found.seq or 0)

    async def discard(self, key: str, stored: Stored) -> bool:
        """Put the mark of a deleted key in its place, which every KV client understands."""
        headers = {_OPERATION: "DEL", _EXPECTED_SEQUENCE: str(stored.revision)}
        with _translated(f"the result {key} was not removed"):
            try:
                await self._stream.publish(nats_topology.result_subject(key), b"", headers=headers)
            except nats.js.errors.APIError as error:
                if error.err_code in _WRONG_LAST_SEQUENCE:
                    return False
                raise
        return True

    async def _found(self, key: str) -> RawStreamMsg | None:
        try:
            return await self._stream.get_msg(
                nats_topology.result_stream(),
                subject=nats_topology.result_subject(key),
                direct=True,
            )
        except nats.js.errors.NotFoundError:
            return None


def _is_deleted(found: RawStreamMsg) -> bool:
    return _OPERATION in (found.headers or {})


class NatsDeadLetters:
    """The stream of dead letters, read one by one: there are few."""

    def __init__(self, stream: JetStreamContext) -> None:
        self._stream = stream

    async def after(self, sequence: int) -> StoredLetter | None:
        """Return the first one behind a number."""
        return await self._found(seq=sequence + 1, subject=subjects.DEAD.wildcard, next=True)

    async def get(self, sequence: int) -> StoredLetter | None:
        """Return one by its number."""
        return await self._found(seq=sequence)

    async def drop(self, sequence: int) -> None:
        """Remove one."""
        with _translated(f"the dead letter {sequence} was not removed"):
            try:
                await self._stream.delete_msg(subjects.DEAD_STREAM, sequence)
            except nats.js.errors.APIError as error:
                if error.err_code != _NO_SUCH_SEQUENCE:
                    raise

    async def last_sequence(self) -> int:
        """Return the number of the newest that ever was."""
        with _translated("the dead letters could not be looked at"):
            return int((await self._stream.stream_info(subjects.DEAD_STREAM)).state.last_seq)

    async def _found(self, **wanted: Any) -> StoredLetter | None:  # Any: of `get_msg`
        with _translated("the dead letters could not be read"):
            try:
                found = await self._stream.get_msg(subjects.DEAD_STREAM, **wanted)
            except nats.js.errors.NotFoundError as error:
                if error.err_code != _NO_MESSAGE:
                    raise
                return None
        age_s = time.time() - found.time.timestamp() if found.time is not None else 0.0
        return StoredLetter(found.seq or 0, found.data or b"", max(0.0, age_s))


class NatsDurable:
    """The durable side of one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stream = client.jetstream(timeout=_CALL_S)
        self.queue = NatsQueue(client, self._stream)
        self.results = NatsResults(self._stream)
        self.dead_letters = NatsDeadLetters(self._stream)

    async def ensure(self, limits: DurableLimits) -> None:
        """Make or change the streams."""
        with _translated("JetStream can't be used for submissions"):
            await nats_topology.ensure(self._stream, limits)

    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> int:
        """Have a message stored."""
        with _translated(f"nothing was stored on {subject}"):
            try:
                stored = await self._stream.publish(
                    subject, payload, headers=dict(headers) if headers else None
                )
            except nats.errors.MaxPayloadError as error:
                raise TooLargeToStoreError(len(payload), self._client.max_payload) from error
            except nats.js.errors.APIError as error:
                if error.err_code != _TOO_LARGE:
                    raise
                name = await self._stream.find_stream_name_by_subject(subject)
                config = (await self._stream.stream_info(name)).config
                limit = config.max_msg_size or self._client.max_payload
                raise TooLargeToStoreError(len(payload), limit) from error
        return int(stored.seq)
