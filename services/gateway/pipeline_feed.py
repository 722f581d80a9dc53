"""Listens to the services while somebody watches them, and only then."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, cast, get_args

import msgspec

from slipstream.services.gateway.chunks import Event
from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.pipeline import Pipeline
from slipstream.shared.bus.bus import Bus, Incoming, Subscription
from slipstream.shared.bus.discovery import Stats
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import DISCOVERY_STATS, REPORT
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import RequestId
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.messages.common import Accepted, Role
from slipstream.shared.messages.generate import Finished
from slipstream.shared.messages.reports import WorkerReport

MAX_NUM_WATCHERS = 16
PERIOD_S = 0.2  # between two updates of one watcher
_ASK_S = 0.5  # between two questions for statistics
_STILL_S = 1.0  # an update comes at least so often: rates fall when nothing happens
# Names that pages give their own requests; no right hangs on them, so they may be shown.
_PAGE_PREFIX = "console-"
_ROLES = frozenset(get_args(Role))

_stats = msgspec.json.Decoder(Stats)
_json = msgspec.json.Encoder().encode


class Follower:
    """Tells the pipeline of one request of this gateway, from `Accepted` to its end."""

    def __init__(self, pipeline: Pipeline, client_id: str | None) -> None:
        self._pipeline = pipeline
        self._client_id = client_id
        self._asked_s = time.monotonic()
        self._request_id: RequestId | None = None

    def see(self, events: Iterable[Event]) -> None:
        """Look at what has come of it."""
        for _, event in events:
            match event:
                case Accepted():
                    self._request_id = event.request_id
                    self._pipeline.requests.accepted(
                        event, self._client_id, self._asked_s, time.monotonic()
                    )
                case Finished():
                    self._pipeline.requests.finished(event, time.monotonic())

    def leave(self) -> None:
        """Say that nobody reads it any more."""
        if self._request_id is not None:
            self._pipeline.requests.left(self._request_id, time.monotonic())


class PipelineFeed:
    """One pipeline for all watchers; it is made for the first and dropped with the last."""

    def __init__(self, bus: Bus, num_open: Callable[[], int]) -> None:
        self._bus = bus
        self._num_open = num_open
        self._pipeline: Pipeline | None = None
        self._num_watchers = 0
        self._change = asyncio.Lock()  # only one starts or stops to listen at a time
        self._subscriptions: list[Subscription] = []
        self._asking: asyncio.Task[None] | None = None

    @property
    def num_watchers(self) -> int:
        """Who watches now."""
        return self._num_watchers

    def follow(self, client_id: str | None) -> Follower | None:
        """Return who tells watchers of a request; None while nobody watches."""
        if self._pipeline is None:
            return None
        is_pages = client_id is not None and client_id.startswith(_PAGE_PREFIX)
        return Follower(self._pipeline, client_id if is_pages else None)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Yield updates as events. Raises ApiError where too many watch."""
        if self._num_watchers >= MAX_NUM_WATCHERS:
            message = f"{self._num_watchers} pages watch the pipeline already, which is the limit"
            raise ApiError("overloaded", message, retry_after_ms=5000)
        self._num_watchers += 1
        try:
            pipeline = await self._listen()
            yield self._events(pipeline)
        finally:
            self._num_watchers -= 1
            await self._listen_no_more()

    async def _events(self, pipeline: Pipeline) -> AsyncGenerator[bytes, None]:
        seen: int | None = None
        sent_s = 0.0
        while True:
            now_s = time.monotonic()
            if seen != pipeline.version or now_s - sent_s >= _STILL_S:
                update = pipeline.update(seen, self._num_open(), now_s)
                seen, sent_s = pipeline.version, now_s
                yield b"data: " + _json(update) + b"\n\n"
            # Whoever reads slowly finds all that has changed in one update.
            await asyncio.sleep(PERIOD_S)

    async def _listen(self) -> Pipeline:
        async with self._change:
            if self._pipeline is not None:
                return self._pipeline
            pipeline = Pipeline()
            inbox = self._bus.new_inbox()
            self._subscriptions = [
                await serve(self._bus, REPORT.wildcard, REPORT, self._report),
                await self._bus.subscribe(inbox, self._figures),
            ]
            self._asking = asyncio.create_task(self._ask(inbox))
            self._pipeline = pipeline
            return pipeline

    async def _listen_no_more(self) -> None:
        async with self._change:
            if self._num_watchers or self._pipeline is None:
                return
            self._pipeline = None
            if self._asking is not None:
                await cancel_all([self._asking])
            for subscription in self._subscriptions:
                await subscription.stop()
            self._subscriptions = []

    async def _ask(self, inbox: str) -> None:
        """Ask all services for their statistics, time and again."""
        while True:
            with contextlib.suppress(SlipstreamError):
                await self._bus.publish(DISCOVERY_STATS, b"", reply=inbox)
            await asyncio.sleep(_ASK_S)

    async def _report(self, report: WorkerReport, _incoming: Incoming) -> None:
        if self._pipeline is not None:
            self._pipeline.report(report, time.monotonic())

    async def _figures(self, incoming: Incoming) -> None:
        found = _figures_of(incoming)
        if found is not None and self._pipeline is not None:
            self._pipeline.figures(*found, time.monotonic())


# Any: see tally_meter.Tallies.
def _figures_of(incoming: Incoming) -> tuple[str, Role, Mapping[str, Any]] | None:
    """Return who answers, and its figures; None for what is no service of ours."""
    try:
        stats = _stats.decode(incoming.payload)
    except msgspec.DecodeError:
        return None
    role = stats.metadata.get("role")
    if not stats.name.startswith("slipstream-") or role not in _ROLES:
        return None
    data = next((each.data for each in stats.endpoints if each.data is not None), {})
    figures = data if isinstance(data, Mapping) else {}
    return stats.id, cast("Role", role), figures
