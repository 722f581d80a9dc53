"""The bus on a real NATS server, with the settings that keep it alive through trouble."""

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import nats
import nats.errors
import nats.js.errors
import structlog
from nats.aio.msg import Msg

from slipstream.shared.bus.bus import (
    Handler,
    Incoming,
    Subscription,
    cancel_others,
    check_size,
    run_handler,
    wait_for_others,
)
from slipstream.shared.bus.connection import Connection
from slipstream.shared.bus.endpoints import Endpoint
from slipstream.shared.bus.nats_access import NO_ACCESS, NatsAccess
from slipstream.shared.bus.nats_client import SturdyClient
from slipstream.shared.bus.nats_durable import NatsDurable
from slipstream.shared.bus.nats_leader import NatsLeaderStore
from slipstream.shared.bus.nats_refusals import Refusals, why_refused
from slipstream.shared.bus.nats_registry import NatsRegistry
from slipstream.shared.bus.nats_trouble import denial_in, is_old, server_problem, trouble_of
from slipstream.shared.bus.nats_watch import ServerWatch
from slipstream.shared.bus.permissions import BUCKET_MAKER, NatsRole
from slipstream.shared.errors import (
    ConfigurationError,
    DeadlineExceededError,
    DisconnectedError,
    NoAnswerError,
    NoRespondersError,
    NotPermittedError,
)
from slipstream.shared.rarely import Rarely

log = structlog.get_logger()

# Half the default gateway of a busy stream; above it nats-py drops and reports a slow consumer.
PENDING_MESSAGES = 65_536
PENDING_BYTES = 64 * 1024 * 1024
RECONNECT_WAIT_S = 0.5
FLUSH_S = 1.0
# What is held back while the server is away or silent; nats-py holds back no more.
MAX_HELD_BYTES = 2 * 1024 * 1024
_LEAST_S = 0.01
STOP_S = 2.0  # what the end of a subscription waits for its handlers

_NOT_SENT = (
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionDrainingError,
    nats.errors.OutboundBufferLimitError,
)


@dataclass(eq=False)
class _NatsSubscription:
    owner: "NatsBus"
    handler: Handler
    inner: Any = None  # Any: nats-py's own type is not exported
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def start(self, message: Msg) -> None:
        """Run the handler in a task: nats-py would run one after another."""
        task = asyncio.create_task(run_handler(self.handler, _incoming(message)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def stop(self) -> None:
        """Leave, take what the server had sent already, then wait for the handlers that run."""
        if self in self.owner.subscriptions:
            self.owner.subscriptions.discard(self)
            await self._leave()
        await wait_for_others(self.tasks, STOP_S)

    async def _leave(self) -> None:
        client = self.owner.client
        with contextlib.suppress(nats.errors.Error, DeadlineExceededError):
            try:
                if client.is_connected:
                    # Not `drain`: its ping overtakes the unsubscription that it should follow.
                    await client._send_unsubscribe(self.inner._id)  # noqa: SLF001 # nothing public does it
                    await self.owner.flush(STOP_S)
            finally:
                await self.inner.unsubscribe()


class NatsBus:
    """One connection. Tokens and control have one each: a burst must not delay a cancel."""

    def __init__(self, client: SturdyClient, role: NatsRole | None = None) -> None:
        self.client = client
        self.role = role  # of our key; None without one
        self.refusals = Refusals()
        self.subscriptions: set[_NatsSubscription] = set()
        self.endpoints: list[Endpoint] = []
        self.connection = Connection()
        self.num_reconnects = 0
        self._is_wanted = False
        self._lost = asyncio.Event()
        self._rarely = Rarely()
        self._deaf_on: set[str] = set()  # where the server does not let us listen
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        url: str,
        name: str,
        access: NatsAccess = NO_ACCESS,
        *,
        connect_timeout_s: float = 10.0,
    ) -> "NatsBus":
        """
        Connect, waiting for a server that is still starting.

        Raises ConfigurationError when none answers in time, or one refuses us.
        """
        client = SturdyClient(wants_tls=access.wants_tls(url))
        seed = access.seed()
        bus = cls(client, seed.role if seed is not None else None)
        options = access.connect_options(url)
        wait_s: Any = RECONNECT_WAIT_S * (1 + random.random())  # noqa: S311 # jitter # Any: int there
        try:
            # With attempts without end the client itself tries until somebody answers.
            async with asyncio.timeout(connect_timeout_s):
                connecting = client.connect(
                    servers=[url],
                    name=name,
                    connect_timeout=2,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=wait_s,
                    ping_interval=10,
                    drain_timeout=5,
                    flush_timeout=FLUSH_S,  # what a publisher waits when too much is held back
                    allow_reconnect=True,
                    error_cb=bus._on_error,
                    disconnected_cb=bus._on_disconnect,
                    reconnected_cb=bus._on_reconnect,
                    closed_cb=bus._on_close,
                    lame_duck_mode_cb=bus._on_lame_duck,
                    **options,
                )
                await bus.refusals.unless_refused(connecting)
        except (OSError, nats.errors.Error, TimeoutError) as error:
            reason = client.last_error or error
            await client.close()
            if (refused := why_refused(error)) is not None:
                raise ConfigurationError(f"{url} {refused}") from error
            raise ConfigurationError(
                f"no NATS server answers at {url} ({str(reason) or type(reason).__name__}); "
                "start one with `slipstream up`, or pass --nats URL"
            ) from error
        if (problem := server_problem(client._server_info)) is not None:  # noqa: SLF001 # nothing public tells of headers
            await client.close()
            raise ConfigurationError(f"{url} can't be used: {problem}")
        bus._is_wanted = True
        bus._met_server()
        watch = ServerWatch(client, bus.connection, bus._warn)
        bus._watching = asyncio.create_task(watch.run())
        return bus

    @property
    def max_payload(self) -> int:
        """The server's limit, as it told us when we connected."""
        return self.client.max_payload

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send; see `Bus`."""
        check_size(payload, headers, self.max_payload)
        self.connection.check_permitted(subject)
        if not self.connection.is_up and self.client.pending_data_size > MAX_HELD_BYTES:
            # Held back for a server that is silent; nats-py counts only for one that is gone.
            raise DisconnectedError(subject)
        try:
            await self.client.publish(
                subject, payload, reply=reply, headers=dict(headers) if headers else None
            )
        except _NOT_SENT as error:
            raise DisconnectedError(subject) from error

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Incoming:
        """Send and wait for the one answer; see `Bus`."""
        check_size(payload, headers, self.max_payload)
        self.connection.check_permitted(subject)
        if not self.client.is_closed and not self.connection.is_up:
            # Held back it would be answered when nobody waits for it any more.
            began = time.monotonic()
            if not await self.connection.wait_up(timeout_s):
                raise NoAnswerError(f"connection to NATS to ask {subject}", timeout_s)
            timeout_s = max(_LEAST_S, timeout_s - (time.monotonic() - began))
        try:
            message = await self.client.request(
                subject, payload, timeout=timeout_s, headers=dict(headers) if headers else None
            )
        except nats.errors.NoRespondersError as error:
            raise NoRespondersError(subject) from error
        except _NOT_SENT as error:
            raise DisconnectedError(subject) from error
        except (nats.errors.TimeoutError, TimeoutError) as error:
            self.connection.check_permitted(subject)
            raise NoAnswerError(f"answer on {subject}", timeout_s) from error
        return _incoming(message)

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Call the handler for each message; see `Bus`."""
        subscription = _NatsSubscription(self, handler)
        try:
            subscription.inner = await self.client.subscribe(
                subject,
                queue=queue,
                cb=subscription.start,
                pending_msgs_limit=PENDING_MESSAGES,
                pending_bytes_limit=PENDING_BYTES,
            )
        except _NOT_SENT as error:
            raise DisconnectedError(subject) from error
        self.subscriptions.add(subscription)
        return subscription

    def new_inbox(self) -> str:
        """Return a subject that only this client listens on."""
        return self.client.new_inbox()

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Wait until the server has what was published."""
        whole_s: Any = timeout_s  # Any: nats-py says int, and takes a float
        try:
            # nats-py's ping overtakes what it still buffers; by the second one that has left.
            await self.client.flush(timeout=whole_s)
            await self.client.flush(timeout=whole_s)
        except (nats.errors.Error, TimeoutError) as error:
            raise DeadlineExceededError("flush", timeout_s) from error

    def registry(self) -> NatsRegistry:
        """Return the bucket of worker records."""
        return NatsRegistry(self.client, may_make=self.role in (None, BUCKET_MAKER))

    def durable(self) -> NatsDurable:
        """Return submissions and their results."""
        return NatsDurable(self.client)

    def leader(self) -> NatsLeaderStore:
        """Return the leader bucket."""
        return NatsLeaderStore(self.client)

    async def close(self, timeout_s: float = 2.0) -> None:
        """Stop the subscriptions, send what is buffered, disconnect; bounded."""
        self._is_wanted = False
        if self._watching is not None:
            self._watching.cancel()
        subscriptions = list(self.subscriptions)
        with contextlib.suppress(TimeoutError, DeadlineExceededError, nats.errors.Error):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(subscription.stop() for subscription in subscriptions))
                if self.client.is_connected:
                    await self.flush(timeout_s)
        with contextlib.suppress(TimeoutError, nats.errors.Error, OSError):
            await asyncio.wait_for(self.client.close(), timeout_s)
        cancel_others(task for subscription in subscriptions for task in subscription.tasks)

    def check_listening(self) -> None:
        """Raise NotPermittedError for a subscription that the server has refused."""
        for subject in sorted(self._deaf_on):
            raise NotPermittedError("listen on", subject)

    async def _on_error(self, error: Exception) -> None:
        if not self._is_wanted:
            self.refusals.connecting(error)
        denial = denial_in(error)
        if denial is not None:
            self.refusals.note(denial)
        if denial is not None and denial.verb == "publish":
            self.connection.refused(denial.subject)
        elif denial is not None:
            self._deaf_on.add(denial.subject)
        if not self._is_wanted and denial is None:
            return  # whoever waits for the connection is told why there is none
        trouble = trouble_of(error)
        self._warn(trouble.event, {**trouble.fields})

    async def _on_disconnect(self) -> None:
        self.connection.lost()
        if self._is_wanted:
            self._warn("nats_disconnected", {})

    async def _on_reconnect(self) -> None:
        self.num_reconnects += 1
        self._rarely.forget()
        self.connection.back()
        self._inform("nats_reconnected", {"num_reconnects": self.num_reconnects})
        self._met_server()

    async def _on_lame_duck(self) -> None:
        # It hangs up on its clients one by one; the server that is there next is connected to.
        self._warn("nats_lame_duck", {"remedy": "the server is going down: start it again"})

    async def _on_close(self) -> None:
        self.connection.lost()
        if self._is_wanted:
            # The server refused us for good (limits, credentials): nothing reconnects after this.
            self._fail("nats_closed", {"error": str(self.client.last_error)})
            self._lost.set()

    def _met_server(self) -> None:
        """Say what the server lacks, and what follows for a message's size."""
        info = self.client._server_info  # noqa: SLF001 # nothing public tells all of it
        if (problem := server_problem(info)) is not None:
            self._fail("nats_unsuitable", {"error": problem})
        elif is_old(info):
            self._warn("nats_server_old", {"version": str(info.get("version"))})

    def _warn(self, event: str, fields: dict[str, Any]) -> None:
        # Any: values of every type
        num_held = self._rarely.is_due(f"{event} {fields.get('subject', '')}")
        if num_held is not None:
            self._log_line("warning", event, {**fields, "num_held_back": num_held})

    def _inform(self, event: str, fields: dict[str, Any]) -> None:  # Any: as above
        self._log_line("info", event, fields)

    def _fail(self, event: str, fields: dict[str, Any]) -> None:  # Any: as above
        self._log_line("error", event, fields)

    def _log_line(self, level: str, event: str, fields: dict[str, Any]) -> None:  # Any: as above
        """Write a line; a library writes it elsewhere."""
        getattr(log, level)(event, **fields)

    async def wait_lost(self) -> None:
        """Return when the connection is gone for good: the process is deaf and should end."""
        await self._lost.wait()


def _incoming(message: Msg) -> Incoming:
    return Incoming(message.subject, message.data, message.reply, message.headers)
