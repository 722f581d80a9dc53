"""The bucket of worker records on a real NATS server."""

import contextlib
from collections.abc import Iterator

import nats.errors
import nats.js.api
import nats.js.errors
from nats.aio.client import Client
from nats.js.kv import KeyValue

from slipstream.shared.bus import subjects
from slipstream.shared.bus.subjects import last_token
from slipstream.shared.errors import DeadlineExceededError

REGISTRY_TTL_S = 6.0  # three times the interval at which workers put their record again


class NatsRegistry:
    """The bucket of worker records, made by whoever comes first, of those that may make it."""

    def __init__(self, client: Client, *, may_make: bool = True) -> None:
        self.client = client
        self._may_make = may_make
        self._bucket: KeyValue | None = None
        self._is_made = False  # by the last look for it

    async def ensure(self) -> bool:
        """Make the bucket where it is missing; tell whether it was."""
        self._is_made = False
        with self._forget_on_error():
            await self._open()
        return self._is_made

    async def put(self, key: str, value: bytes) -> None:
        """Write an entry."""
        with self._forget_on_error():
            await (await self._open()).put(key, value)

    async def delete(self, key: str) -> None:
        """Remove an entry."""
        with self._forget_on_error():
            await (await self._open()).delete(key)

    async def entries(self) -> dict[str, bytes]:
        """Return all entries; one that fades while we look is left out."""
        found: dict[str, bytes] = {}
        with self._forget_on_error():
            bucket = await self._open()
            # Not by nats-py's own `keys`, which needs the right to make consumers.
            info = await self.client.jetstream(timeout=2.0).stream_info(
                f"KV_{subjects.WORKERS_BUCKET}", subjects_filter=">"
            )
            for subject in info.state.subjects or {}:
                key = last_token(subject)
                with contextlib.suppress(nats.js.errors.KeyNotFoundError):
                    found[key] = (await bucket.get(key)).value or b""
        return found

    async def _open(self) -> KeyValue:
        if self._bucket is None:
            stream = self.client.jetstream(timeout=2.0)
            try:
                self._bucket = await stream.key_value(subjects.WORKERS_BUCKET)
            except nats.js.errors.BucketNotFoundError:
                if not self._may_make:
                    raise
                self._bucket = await stream.create_key_value(
                    bucket=subjects.WORKERS_BUCKET,
                    history=1,
                    ttl=REGISTRY_TTL_S,
                    direct=True,
                    storage=nats.js.api.StorageType.MEMORY,
                )
                self._is_made = True
        return self._bucket

    @contextlib.contextmanager
    def _forget_on_error(self) -> Iterator[None]:
        try:
            yield
        except (nats.errors.Error, TimeoutError) as error:
            # The server may have restarted without the bucket: look for it anew next time.
            self._bucket = None
            raise DeadlineExceededError(
                f"registry ({type(error).__name__}: {error})", 2.0
            ) from error
