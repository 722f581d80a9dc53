"""An in-memory bus with the rules of NATS: wildcards, queue groups, no responders."""

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.shared.bus.bus import (
    Handler,
    Incoming,
    cancel_others,
    check_size,
    run_handler,
    wait_for_others,
)
from slipstream.shared.bus.connection import Connection
from slipstream.shared.bus.endpoints import Endpoint
from slipstream.shared.bus.memory_durable import MemoryDurable
from slipstream.shared.bus.memory_leader import MemoryLeaderStore
from slipstream.shared.errors import DeadlineExceededError, NoAnswerError, NoRespondersError

STOP_S = 2.0  # what the end of a subscription waits for its handlers


def matches(pattern: str, subject: str) -> bool:
    """Tell whether a subject is covered by a pattern with `*` (one token) and `>` (the rest)."""
    wanted, found = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if part == ">":
            return len(found) > position
        if position >= len(found) or part not in {"*", found[position]}:
            return False
    return len(wanted) == len(found)


@dataclass(eq=False)
class _MemorySubscription:
    broker: "MemoryBroker"
    pattern: str
    handler: Handler
    queue: str = ""
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def start(self, message: Incoming) -> None:
        """Run the handler in a task of its own."""
        task = asyncio.create_task(run_handler(self.handler, message))
        for tasks in (self.tasks, self.broker.tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def stop(self) -> None:
        """Take no further message, then wait for the handlers that run."""
        if self in self.broker.subscriptions:
            self.broker.subscriptions.remove(self)
        await wait_for_others(self.tasks, STOP_S)


@dataclass
class MemoryRegistry:
    """A dictionary with the registry's protocol."""

    records: dict[str, bytes] = field(default_factory=dict)

    async def ensure(self) -> bool:
        """Nothing is missing."""
        return False

    async def put(self, key: str, value: bytes) -> None:
        """Write an entry."""
        self.records[key] = value

    async def delete(self, key: str) -> None:
        """Remove an entry."""
        self.records.pop(key, None)

    async def entries(self) -> dict[str, bytes]:
        """Return all entries."""
        return dict(self.records)


class MemoryBroker:
    """What the in-memory buses of one test share."""

    def __init__(self, max_payload: int = 8 * 1024 * 1024) -> None:
        self.max_payload = max_payload
        self.subscriptions: list[_MemorySubscription] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.registry = MemoryRegistry()
        self.durable = MemoryDurable()
        self.leader = MemoryLeaderStore()
        self.published: list[Incoming] = []
        self._turns: dict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._inboxes = itertools.count()

    def deliver(self, message: Incoming) -> int:
        """Hand a message to every subscriber and one of each queue group; return how many."""
        self.published.append(message)
        receivers = [s for s in self.subscriptions if matches(s.pattern, message.subject)]
        chosen = [s for s in receivers if not s.queue]
        # As on the server, a group is known by its name, whatever patterns its members listen to.
        for group in sorted({s.queue for s in receivers if s.queue}):
            members = [s for s in receivers if s.queue == group]
            chosen.append(members[next(self._turns[group]) % len(members)])
        for subscription in chosen:
            subscription.start(message)
        return len(chosen)

    def new_inbox(self) -> str:
        """Return a fresh inbox."""
        return f"_INBOX.memory.{next(self._inboxes)}"


class MemoryBus:
    """One client of a broker."""

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker()
        self.endpoints: list[Endpoint] = []
        self.connection = Connection()
        self._mine: list[_MemorySubscription] = []

    @property
    def max_payload(self) -> int:
        """Largest payload the broker takes."""
        return self.broker.max_payload

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Deliver at once; a publish with a reply subject and no receiver is answered by 503."""
        check_size(payload, headers, self.max_payload)
        if not self.broker.deliver(Incoming(subject, payload, reply, headers)) and reply:
            self.broker.deliver(Incoming(reply, b"", "", {"Status": "503"}))

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Incoming:
        """Send and wait for the one answer."""
        answer: asyncio.Future[Incoming] = asyncio.get_running_loop().create_future()

        async def take(message: Incoming) -> None:
            if not answer.done():
                answer.set_result(message)

        inbox = self.new_inbox()
        subscription = await self.subscribe(inbox, take)
        try:
            await self.publish(subject, payload, reply=inbox, headers=headers)
            async with asyncio.timeout(timeout_s):
                message = await answer
        except TimeoutError as error:
            raise NoAnswerError(f"answer on {subject}", timeout_s) from error
        finally:
            await subscription.stop()
        if message.is_no_responders:
            raise NoRespondersError(subject)
        return message

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = ""
    ) -> _MemorySubscription:
        """Register a handler."""
        subscription = _MemorySubscription(self.broker, subject, handler, queue)
        self.broker.subscriptions.append(subscription)
        self._mine.append(subscription)
        return subscription

    def new_inbox(self) -> str:
        """Return a fresh inbox."""
        return self.broker.new_inbox()

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Wait until every handler has returned."""
        me = asyncio.current_task()
        try:
            async with asyncio.timeout(timeout_s):
                while others := self.broker.tasks - {me}:
                    await asyncio.wait(others)
        except TimeoutError as error:
            raise DeadlineExceededError("flush", timeout_s) from error

    def registry(self) -> MemoryRegistry:
        """Return the broker's registry."""
        return self.broker.registry

    def durable(self) -> MemoryDurable:
        """Return the broker's durable side."""
        return self.broker.durable

    def leader(self) -> MemoryLeaderStore:
        """Return the broker's leader bucket."""
        return self.broker.leader

    async def close(self, timeout_s: float = 2.0) -> None:
        """Stop this client's subscriptions; bounded."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(subscription.stop() for subscription in self._mine))
        cancel_others(task for subscription in self._mine for task in subscription.tasks)
