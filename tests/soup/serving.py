"""Serve orders, many at once: send, listen, cancel, leave, resume; keep everything that comes."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from slipstream.shared.bus.subjects import GENERATE, RESUME
from tests.end_to_end import client
from tests.end_to_end.client import Answer

from .orders import Moment, Order

_END_S = 120.0  # for an order, beside all others
_RESUMED_S = 20.0
_LATE_S = 0.2
_ENDINGS = ("completion", "finished", "failed")


@dataclass(eq=False)
class Inbox:
    """What arrived on one subject."""

    messages: list[Answer] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, kw_only=True)
class Resumed(Inbox):
    """What came of asking for a stream again."""

    choice: int


@dataclass(eq=False, kw_only=True)
class Served(Inbox):
    """What came of an order."""

    order: Order
    resumed: list[Resumed] = field(default_factory=list)

    @property
    def request_id(self) -> str | None:
        """The id that the scheduler gave to it, once it is known; none of what it refused."""
        return self.messages[0].get("request_id") if self.messages else None

    @property
    def is_accepted(self) -> bool:
        """The first message said so."""
        return bool(self.messages) and self.messages[0]["type"] == "accepted"

    @property
    def endings(self) -> list[Answer]:
        """All of them, of whichever choice."""
        return [each for each in self.messages if each["type"] in _ENDINGS]

    @property
    def num_choices(self) -> int:
        """How many endings are to come: a refusal is one for all choices."""
        body = self.order.body
        if isinstance(body, bytes) or not self.is_accepted:
            return 1
        return body.get("n") or 1

    def of_choice(self, choice: int) -> client.Stream:
        """Return the stream of one choice."""
        return client.Stream([e for e in self.messages[1:] if e.get("choice", 0) == choice])

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Return when what came fulfils a condition, or when no more is to come."""
        while not is_true() and len(self.endings) < self.num_choices:
            self.changed.clear()
            await self.changed.wait()


class Table:
    """Where orders are served, so many at a time."""

    def __init__(self, asking: client.Client, seed: int, num_together: int) -> None:
        self._asking = asking
        self._random = Random(seed)
        self._limit = asyncio.Semaphore(num_together)
        self._prefix = asking.connection.new_inbox()
        self._inboxes: list[Inbox] = []
        self._subscription: Subscription | None = None
        self.served: list[Served] = []
        self.phases: dict[str, list[str]] = defaultdict(list)  # that cancels met, by the id told

    async def serve(self, orders: Sequence[Order]) -> None:
        """Return when all are answered, or left, or have waited for too long."""
        subject = f"{self._prefix}.*"
        self._subscription = await self._asking.connection.subscribe(subject, cb=self._take)
        async with asyncio.TaskGroup() as group:
            for order in orders:
                self.served.append(Served(order=order))
                group.create_task(self._serve(self.served[-1]))

    async def close(self) -> None:
        """Listen no more; until then it is seen if something comes behind an ending."""
        assert self._subscription is not None, "closed after serving"
        await asyncio.sleep(_LATE_S)
        await self._subscription.unsubscribe()

    async def cancel(self, request_id: str) -> None:
        """Cancel a request, and keep what is said to it."""
        phases = self.phases[request_id]
        phases.append("unanswered")  # it counts from when it is sent
        position = len(phases) - 1
        answer = await self._asking.cancel(request_id)
        phases[position] = answer.get("phase", "unknown")

    async def _take(self, message: Msg) -> None:
        inbox = self._inboxes[int(message.subject.rpartition(".")[2])]
        inbox.messages.append(client.decode(message.data))
        inbox.changed.set()

    def _open(self, inbox: Inbox) -> str:
        self._inboxes.append(inbox)
        return f"{self._prefix}.{len(self._inboxes) - 1}"

    async def _serve(self, served: Served) -> None:
        async with self._limit:
            payload = client.encode(served.order.body, served.order.encoding)
            if served.order.fate == "leave":
                await self._leave(served.order, payload)
                return
            reply = self._open(served)
            await self._asking.connection.publish(GENERATE.subject(), payload, reply=reply)
            # Who is not answered is told by the checks, with everything else.
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self._attend(served)

    async def _attend(self, served: Served) -> None:
        acts = {"cancel": self._cancel_at, "resume": self._resume_at}
        async with asyncio.TaskGroup() as group:
            if (act := acts.get(served.order.fate)) is not None:
                for moment in served.order.moments:
                    group.create_task(act(served, moment))
            await served.until(lambda: False)

    async def _leave(self, order: Order, payload: bytes) -> None:
        """Hang up in the middle of it."""
        url = self._asking.connection.connected_url
        assert url is not None, "it is connected"
        async with client.connected(url.geturl()) as leaving:
            inbox = leaving.connection.new_inbox()
            await leaving.connection.subscribe(inbox)
            await leaving.connection.publish(GENERATE.subject(), payload, reply=inbox)
            await leaving.connection.flush()
            await asyncio.sleep(order.moments[0].delay_s)

    async def _cancel_at(self, served: Served, moment: Moment) -> None:
        await _wait(served, moment)
        if served.request_id is not None:
            await self.cancel(served.request_id)

    async def _resume_at(self, served: Served, moment: Moment) -> None:
        await _wait(served, moment)
        if served.request_id is None:
            return
        resumed = Resumed(choice=self._random.randrange(served.num_choices))
        served.resumed.append(resumed)
        reply = self._open(resumed)
        body = {
            "type": "resume",
            "request_id": served.request_id,
            "from_index": moment.from_index,
            "choice": resumed.choice,
            "reply": reply,
        }
        subject = RESUME.subject(request_id=served.request_id)
        payload = client.encode(body, served.order.encoding)
        await self._asking.connection.publish(subject, payload, reply=reply)
        with suppress(TimeoutError):
            async with asyncio.timeout(_RESUMED_S):
                await resumed.changed.wait()


async def _wait(served: Served, moment: Moment) -> None:
    def is_then() -> bool:
        return served.is_accepted and len(served.messages) - 1 >= moment.num_frames

    await served.until(lambda: not moment.is_after_end and is_then())
    await asyncio.sleep(moment.delay_s)
