"""The leader bucket on JetStream."""

import contextlib
import time
from collections.abc import Iterator

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.kv import KeyValue

from slipstream.shared.bus import leader, subjects
from slipstream.shared.bus.durable import StorageError
from slipstream.shared.bus.leader import LEADER_KEY, LeaderEntry, NoStorageError

_CALL_S = 1.0
_OTHER_CONFIGURATION = 10058


class NatsLeaderStore:
    """Makes the bucket where it is missing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._bucket: KeyValue | None = None

    async def create(self, value: bytes) -> int | None:
        """Write the entry if there is none."""
        with self._translated():
            try:
                return await (await self._open()).create(LEADER_KEY, value)
            except nats.js.errors.KeyWrongLastSequenceError:
                return None

    async def update(self, value: bytes, revision: int) -> int | None:
        """Write it again if its revision is this one."""
        with self._translated():
            try:
                return await (await self._open()).update(LEADER_KEY, value, last=revision)
            except nats.js.errors.KeyWrongLastSequenceError:
                return None

    async def get(self) -> LeaderEntry | None:
        """Return the entry."""
        with self._translated():
            try:
                found = await (await self._open(is_made=False)).get(LEADER_KEY)
            except (nats.js.errors.KeyNotFoundError, nats.js.errors.BucketNotFoundError):
                return None
            return LeaderEntry(found.value or b"", found.revision or 0)

    async def delete(self, revision: int) -> None:
        """Remove the entry if its revision is this one."""
        with (
            self._translated(),
            # Somebody else has it by now.
            contextlib.suppress(nats.js.errors.KeyWrongLastSequenceError),
        ):
            await (await self._open()).delete(LEADER_KEY, last=revision)

    async def _open(self, *, is_made: bool = True) -> KeyValue:
        if not self._client.is_connected:
            # What was asked now would be held back, and be written at any time.
            raise StorageError("there is no connection to NATS")
        if self._bucket is None:
            context = self._client.jetstream(timeout=_CALL_S)
            try:
                self._bucket = await context.key_value(subjects.LEADER_BUCKET)
            except nats.js.errors.BucketNotFoundError:
                if not is_made:
                    raise
                with contextlib.suppress(nats.js.errors.BadRequestError):
                    # Refused where somebody else was faster: then it is there.
                    await context.add_stream(_stream())
                self._bucket = await context.key_value(subjects.LEADER_BUCKET)
        return self._bucket

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (nats.errors.Error, TimeoutError) as error:
            # The server may have restarted without the bucket: look for it anew next time.
            self._bucket = None
            reason = getattr(error, "description", None) or str(error) or type(error).__name__
            kind = NoStorageError if self._stores_nothing() else StorageError
            raise kind(f"leader bucket: {reason}") from error

    def _stores_nothing(self) -> bool:
        # What the server said when we connected; nats-py has no public name for it.
        return self._client.is_connected and not self._client._server_info.get("jetstream")  # noqa: SLF001 # nothing public tells of it


def _stream() -> StreamConfig:
    """Return the stream as every KV client expects it."""
    return StreamConfig(
        name=f"KV_{subjects.LEADER_BUCKET}",
        subjects=[f"$KV.{subjects.LEADER_BUCKET}.>"],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_age=leader.LEADER_TTL_S,
        max_msgs_per_subject=1,
        max_bytes=64 * 1024,
        duplicate_window=leader.LEADER_TTL_S,
        allow_direct=True,
        allow_rollup_hdrs=True,
        deny_delete=True,
        # A bucket that was lost and made again goes on with higher revisions.
        first_seq=time.time_ns() // 1_000_000,
    )
