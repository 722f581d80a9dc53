"""The requests of one HTTP request, read as one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Self

from slipstream.services.gateway.chunks import Event
from slipstream.services.gateway.gateway import Gateway
from slipstream.services.gateway.plans import Plan
from slipstream.shared.client.request_stream import RequestStream
from slipstream.shared.lifecycle import cancel_all

Batch = list[Event]


class Streams:
    """Published when entered; what has not ended by then is cancelled when left."""

    def __init__(self, gateway: Gateway, plan: Plan, headers: Mapping[str, str] | None) -> None:
        self._gateway = gateway
        self._headers = headers
        config = gateway.config
        self._streams = [
            RequestStream(
                gateway.bus,
                request,
                gateway.room.open,
                timeout_s=plan.timeout_s or config.request_timeout_s,
                lost_s=config.lost_timeout_s,
            )
            for request in plan.requests
        ]
        self._opened: list[RequestStream] = []
        # Of requests with one answer: the console shows no more of one HTTP request.
        is_single = len(plan.requests) == plan.num_choices == 1
        client_id = plan.requests[0].client_request_id
        self._follower = gateway.feed.follow(client_id) if is_single else None

    @property
    def first(self) -> RequestStream:
        """The one that gives the answer its name and seed."""
        return self._streams[0]

    @property
    def first_frame_s(self) -> float | None:
        """When the first frame of any of them came."""
        return min(
            (each.first_frame_s for each in self._streams if each.first_frame_s is not None),
            default=None,
        )

    async def __aenter__(self) -> Self:
        try:
            for stream in self._streams:
                await stream.open(self._headers)
                self._opened.append(stream)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield what has come of any of them, until all have ended."""
        if len(self._streams) == 1:
            async for events in self.first.batches():
                batch: Batch = [(0, event) for event in events]
                if self._follower is not None:
                    self._follower.see(batch)
                yield batch
            return
        async with contextlib.aclosing(_merged(self._streams)) as merged:
            async for batch in merged:
                yield batch

    async def _leave(self) -> None:
        if self._follower is not None:
            self._follower.leave()
        for stream in self._opened:
            if stream.is_over:
                await stream.close()
            else:
                # Not waited for: the client has gone, or is told of the error now.
                self._gateway.spawn(stream.abandon())


async def _merged(streams: Sequence[RequestStream]) -> AsyncGenerator[Batch, None]:
    # One place: who reads slowly lets the messages wait in their boxes, which are bounded.
    ready: asyncio.Queue[Batch | BaseException | None] = asyncio.Queue(maxsize=1)

    async def pump(request: int, stream: RequestStream) -> None:
        try:
            async for events in stream.batches():
                await ready.put([(request, event) for event in events])
            await ready.put(None)
        except Exception as error:  # noqa: BLE001 - it is raised where it is read
            await ready.put(error)

    tasks = [asyncio.create_task(pump(*each)) for each in enumerate(streams)]
    try:
        num_running = len(tasks)
        while num_running:
            found = await ready.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                num_running -= 1
            else:
                yield found
    finally:
        await cancel_all(tasks)
