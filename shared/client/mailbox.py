"""Where the answers to a request arrive: an inbox of its own, or a box in a room with one inbox."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, Self

from slipstream.shared.bus.bus import Bus, Incoming, Subscription
from slipstream.shared.bus.subjects import last_token
from slipstream.shared.messages.codec import decode_batch, is_array

_BATCHES = "batches"  # boxes have numbers for names


class Mailbox(Protocol):
    """What a reader of a stream listens on."""

    @property
    def subject(self) -> str:
        """Where answers are sent to."""

    @property
    def batch_inbox(self) -> str | None:
        """Where frames of several boxes may come together; None where each comes alone."""

    @property
    def first_frame_s(self) -> float | None:
        """When the first frame came, by the monotonic clock."""

    async def take(self) -> list[Incoming]:
        """Wait for a message; return all that are there by then, in their order."""

    async def close(self) -> None:
        """Take no further message."""


OpenMailbox = Callable[[], Awaitable[Mailbox]]


class _Pile:
    """Messages that wait for their reader; of frames no more than so many bytes."""

    def __init__(self, max_num_bytes: int | None) -> None:
        self.first_frame_s: float | None = None
        self._max_num_bytes = max_num_bytes
        self._num_bytes = 0
        self._messages: deque[Incoming] = deque()
        self._arrived = asyncio.Event()

    def put(self, message: Incoming) -> bool:
        """
        Add a message; False for a frame that found no room.

        A reader misses it, and asks for it when it has read what is here: so a slow one takes no
        more memory than this. What isn't a frame is small, comes once and is never dropped.
        """
        is_full = self._max_num_bytes is not None and self._num_bytes >= self._max_num_bytes
        if self.first_frame_s is None and is_array(message.payload):
            self.first_frame_s = time.monotonic()
        if is_full and is_array(message.payload):
            return False
        self._num_bytes += len(message.payload)
        self._messages.append(message)
        self._arrived.set()
        return True

    async def take(self) -> list[Incoming]:
        """Wait for a message; return all."""
        await self._arrived.wait()
        self._arrived.clear()
        taken = list(self._messages)
        self._messages.clear()
        self._num_bytes = 0
        return taken


class PrivateMailbox:
    """An inbox with a subscription of its own."""

    batch_inbox: str | None = None

    def __init__(self, bus: Bus) -> None:
        self.subject = bus.new_inbox()
        self._pile = _Pile(None)
        self._subscription: Subscription | None = None

    @property
    def first_frame_s(self) -> float | None:
        """When the first frame came."""
        return self._pile.first_frame_s

    @classmethod
    async def open(cls, bus: Bus) -> Self:
        """Listen."""
        box = cls(bus)
        box._subscription = await bus.subscribe(box.subject, box._put)
        return box

    async def take(self) -> list[Incoming]:
        """Wait for a message; return all that are there by then, in their order."""
        return await self._pile.take()

    async def close(self) -> None:
        """Take no further message."""
        if self._subscription is not None:
            await self._subscription.stop()

    async def _put(self, message: Incoming) -> None:
        self._pile.put(message)


class MailRoom:
    """
    Many boxes behind one subscription, so that a request costs none of its own.

    As it listens to all of them for as long as it lives, nobody can see that one reader has gone:
    whoever closes a box early has to cancel its request.
    """

    def __init__(self, bus: Bus, max_box_bytes: int) -> None:
        self.num_dropped_frames = 0
        self._bus = bus
        self._inbox = bus.new_inbox()
        self.batch_inbox = f"{self._inbox}.{_BATCHES}"
        self._max_box_bytes = max_box_bytes
        self._boxes: dict[str, RoomBox] = {}
        self._names = itertools.count()

    async def start(self) -> None:
        """Listen."""
        await self._bus.subscribe(f"{self._inbox}.*", self._sort)

    async def open(self) -> "RoomBox":
        """Return a new box."""
        name = str(next(self._names))
        box = RoomBox(self, name, f"{self._inbox}.{name}", _Pile(self._max_box_bytes))
        self._boxes[name] = box
        return box

    def remove(self, name: str) -> None:
        """Forget a box."""
        self._boxes.pop(name, None)

    async def _sort(self, message: Incoming) -> None:
        name = last_token(message.subject)
        if name != _BATCHES:
            self._put(name, message)
            return
        for each in decode_batch(message.payload):
            self._put(each.box, Incoming(message.subject, bytes(each.frame)))

    def _put(self, name: str, message: Incoming) -> None:
        box = self._boxes.get(name)
        if box is not None and not box.pile.put(message):
            self.num_dropped_frames += 1


class RoomBox:
    """One box of a room."""

    def __init__(self, room: MailRoom, name: str, subject: str, pile: _Pile) -> None:
        self.subject = subject
        self.pile = pile
        self.batch_inbox = room.batch_inbox
        self._room = room
        self._name = name

    @property
    def first_frame_s(self) -> float | None:
        """When the first frame came."""
        return self.pile.first_frame_s

    async def take(self) -> list[Incoming]:
        """Wait for a message; return all that are there by then, in their order."""
        return await self.pile.take()

    async def close(self) -> None:
        """Take no further message."""
        self._room.remove(self._name)
