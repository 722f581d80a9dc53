"""
Service discovery as NATS does it: who asks `$SRV.PING`, `INFO` or `STATS` hears from every service.

The protocol is that of NATS micro-services (ADR-32 of the NATS architecture), so `nats micro ls`
and the micro clients of other languages find us. nats-py's own micro-services subscribe for
their endpoints themselves and answer in their own form of errors; ours listen through `Bus`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import msgspec

from slipstream.shared.bus.bus import Bus, Handler, Incoming, Subscription
from slipstream.shared.bus.endpoints import Endpoint
from slipstream.shared.bus.subjects import DISCOVERY_STATS, discovery_subjects

Verb = Literal["PING", "INFO", "STATS"]


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all answers share."""

    name: str
    id: str
    version: str
    metadata: Mapping[str, str]


class Ping(_Identity, frozen=True, kw_only=True, tag="io.nats.micro.v1.ping_response"):
    """Who is there."""


class EndpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What can be asked of a service, and where."""

    name: str
    subject: str
    queue_group: str
    metadata: Mapping[str, str]


class Info(_Identity, frozen=True, kw_only=True, tag="io.nats.micro.v1.info_response"):
    """What it is for."""

    description: str
    endpoints: list[EndpointInfo]


class EndpointStats(msgspec.Struct, frozen=True, kw_only=True):
    """How often it was asked; times in nanoseconds."""

    name: str
    subject: str
    queue_group: str
    num_requests: int
    num_errors: int
    last_error: str
    processing_time: int
    average_processing_time: int
    data: object = None  # of the first endpoint: what the service counts and shows


class Stats(_Identity, frozen=True, kw_only=True, tag="io.nats.micro.v1.stats_response"):
    """What it has done since it was started."""

    started: str
    endpoints: list[EndpointStats]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who a service is to others."""

    name: str
    id: str
    version: str
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


class Discovery:
    """Answers for one service; `read` returns what it counts and shows, for `STATS`."""

    def __init__(
        self, bus: Bus, identity: Identity, read: Callable[[], object] = lambda: None
    ) -> None:
        self._bus = bus
        self._identity = identity
        self._read = read
        self._started = _timestamp(datetime.now(UTC))
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Listen: for everybody, for all of our name, and for us alone."""
        answers: dict[Verb, Callable[[], object]] = {
            "PING": self._ping,
            "INFO": self._info,
            "STATS": self._stats,
        }
        identity = self._identity
        for verb, answer in answers.items():
            for subject in discovery_subjects(verb, identity.name, identity.id):
                # No queue group: everyone answers.
                self._subscriptions.append(
                    await self._bus.subscribe(subject, self._answering(answer))
                )
        await self._bus.flush()

    async def stop(self) -> None:
        """Be found no more."""
        for subscription in self._subscriptions:
            await subscription.stop()
        self._subscriptions = []

    def _answering(self, answer: Callable[[], object]) -> Handler:
        async def handle(incoming: Incoming) -> None:
            if incoming.reply:
                await self._bus.publish(incoming.reply, msgspec.json.encode(answer()))

        return handle

    def _ping(self) -> Ping:
        identity = self._identity
        return Ping(
            name=identity.name,
            id=identity.id,
            version=identity.version,
            metadata=identity.metadata,
        )

    def _info(self) -> Info:
        identity = self._identity
        return Info(
            name=identity.name,
            id=identity.id,
            version=identity.version,
            metadata=identity.metadata,
            description=identity.description,
            endpoints=[
                EndpointInfo(
                    name=each.name, subject=each.subject, queue_group=each.queue, metadata={}
                )
                for each in self._bus.endpoints
            ],
        )

    def _stats(self) -> Stats:
        identity = self._identity
        # Who answers nothing but this, as a gateway does, has this to hang its figures on.
        endpoints = self._bus.endpoints or [Endpoint("stats", DISCOVERY_STATS)]
        # Once, not once an endpoint: it tells of the whole service.
        data = [self._read(), *[None] * len(endpoints)]
        return Stats(
            name=identity.name,
            id=identity.id,
            version=identity.version,
            metadata=identity.metadata,
            started=self._started,
            endpoints=[_stats_of(*each) for each in zip(endpoints, data, strict=False)],
        )


def _stats_of(endpoint: Endpoint, data: object) -> EndpointStats:
    return EndpointStats(
        name=endpoint.name,
        subject=endpoint.subject,
        queue_group=endpoint.queue,
        num_requests=endpoint.num_requests,
        num_errors=endpoint.num_errors,
        last_error=endpoint.last_error,
        processing_time=endpoint.processing_ns,
        average_processing_time=endpoint.average_ns,
        data=data,
    )


def _timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
