"""What all endpoints share: the model, the keys, the way to the scheduler, and what runs."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.exchange import Exchange
from slipstream.services.gateway.fields import BodyReader
from slipstream.services.gateway.fleet import FleetWatch
from slipstream.services.gateway.keys import ApiKeys, read_keys
from slipstream.services.gateway.metrics import GatewayMetrics
from slipstream.services.gateway.pipeline_feed import PipelineFeed
from slipstream.services.gateway.shapes import ModelCard
from slipstream.services.gateway.token_texts import TokenTexts
from slipstream.shared.bus.bus import Bus
from slipstream.shared.client.mailbox import MailRoom
from slipstream.shared.config import GatewayConfig
from slipstream.shared.lifecycle import cancel_all
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.model_source import open_model

_ABANDON_S = 2.0


@dataclass(frozen=True)
class Served:
    """The model, as far as the gateway knows it."""

    card: ModelCard
    fingerprint: str
    tokenizer: Tokenizer
    texts: TokenTexts


class Gateway:
    """Owned by the service; endpoints hold it."""

    def __init__(
        self,
        config: GatewayConfig,
        bus: Bus,
        tracer: Tracer,
        metrics: GatewayMetrics,
        served: Served,
        keys: ApiKeys,
    ) -> None:
        self.config = config
        self.bus = bus
        self.tracer = tracer
        self.metrics = metrics
        self.served = served
        self.keys = keys
        self.bodies = BodyReader()
        self.room = MailRoom(bus, config.stream_buffer_bytes)
        self.fleet = FleetWatch(bus)
        self.feed = PipelineFeed(bus, lambda: self.num_running)
        self.is_draining = False
        self.has_to_end = asyncio.Event()  # the time of a drain is up
        self.num_running = 0
        self._has_left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen for answers, and for workers."""
        await self.room.start()
        await self.fleet.start()

    def admit(self, exchange: Exchange) -> str | None:
        """Let a request in, or raise ApiError; return the tenant of its key."""
        tenant = self.keys.tenant_of(exchange.headers.get("authorization"))
        if self.is_draining:
            raise ApiError("draining", "the gateway is shutting down")
        limit = self.config.max_num_streams
        # A request that wants tokens counts itself already.
        if self.num_running > limit:
            message = f"{limit} requests are being answered already (--max-num-streams)"
            raise ApiError("overloaded", message, retry_after_ms=1000)
        return tenant

    def leave(self) -> None:
        """Note that a request has been answered."""
        self.num_running -= 1
        self._has_left.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_s: float) -> None:
        """Let what runs finish; say in its stream that what doesn't is cut short."""
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.num_running:
                    self._has_left.clear()
                    await self._has_left.wait()
        self.has_to_end.set()

    async def finish(self) -> None:
        """Cancel what nobody reads any more, within a moment."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_ABANDON_S)
        await cancel_all(self._tasks)


async def open_gateway(
    config: GatewayConfig, bus: Bus, tracer: Tracer, metrics: GatewayMetrics
) -> Gateway:
    """Read keys and model, and wire the gateway's parts. Raises SlipstreamError."""
    keys = await asyncio.to_thread(read_keys, config.api_keys, config.api_key_list)
    served = await asyncio.to_thread(_open_served, config)
    return Gateway(config, bus, tracer, metrics, served, keys)


def _open_served(config: GatewayConfig) -> Served:
    model = open_model(config)
    tokenizer = Tokenizer(model.directory)
    card = ModelCard(
        id=model.name, created=int(time.time()), max_model_len=model.config.max_context_length
    )
    return Served(card, f"fp_{model.fingerprint[:12]}", tokenizer, TokenTexts(tokenizer))
