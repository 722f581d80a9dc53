"""
What a standby remembers of clients' messages until each request has its ending. Pure.

The active scheduler says under which id it has admitted a message, and which have ended; workers'
reports say the same of what they answered. Whatever is left is for a successor to admit again.
"""

import hashlib
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.reports import RequestAdmitted, RequestsSettled, WorkerReport

MAX_NUM = 8192
_EARLY_S = 5.0  # the active's word may overtake the client's message, by less
_MAX_NUM_EARLY = 4096
_CHOICE = re.compile(r"(.+)c(\d+)")


def digest_of(incoming: Incoming) -> bytes:
    """Return what a message is known by: nobody else has its inbox, seldom twice for one text."""
    digest = hashlib.blake2b(f"{incoming.reply} ".encode(), digest_size=16)
    digest.update(incoming.payload)
    return digest.digest()


@dataclass(eq=False)
class Shadowed:
    """A message, and what became of it as far as is known."""

    incoming: Incoming
    digest: bytes
    arrived_at: float
    admitted: RequestAdmitted | None = None
    attempt: int = 0  # the highest one heard of
    is_held: bool = False  # by a worker, which has all of it
    ended_choices: set[int] = field(default_factory=set)


class Shadow:
    """Bounded in number, bytes and age; what workers hold goes first."""

    def __init__(self, max_bytes: int, max_age_s: float, max_num: int = MAX_NUM) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._max_num = max_num
        self._num_bytes = 0
        self._entries: OrderedDict[int, Shadowed] = OrderedDict()  # by identity, the oldest first
        self._unmatched: defaultdict[bytes, deque[Shadowed]] = defaultdict(deque)
        self._by_request: dict[RequestId, Shadowed] = {}
        # Of messages that have not come yet: what was said of them.
        self._early: deque[tuple[float, bytes, RequestAdmitted | None]] = deque()
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """Bytes of all messages."""
        return self._num_bytes

    def add(self, incoming: Incoming, now: float) -> None:
        """Remember a message."""
        self._forget_early(now)
        entry = Shadowed(incoming, digest_of(incoming), now)
        for early in self._early:
            if early[1] == entry.digest:
                self._early.remove(early)
                if early[2] is None:
                    return  # refused before it was here
                self._insert(entry)
                self._match(entry, early[2])
                return
        self._insert(entry)
        self._unmatched[entry.digest].append(entry)

    def admitted(self, message: RequestAdmitted, now: float) -> None:
        """Take note under which id a message was admitted."""
        if message.request_id in self._by_request:
            return
        if entry := self._take_unmatched(message.digest):
            self._match(entry, message)
        elif message.message is not None:
            told = message.message
            incoming = Incoming(told.subject, told.payload, message.reply, told.headers)
            entry = Shadowed(incoming, message.digest, now - told.elapsed_ms / 1000)
            self._insert(entry)
            self._match(entry, message)
        else:
            self._note_early(message.digest, message, now)

    def settled(self, message: RequestsSettled, now: float) -> None:
        """Forget what has its ending."""
        for request_id in message.request_ids:
            if (entry := self._by_request.get(request_id)) is not None:
                self._remove(entry)
            else:
                self._forget_early_request(request_id)
        for digest in message.digests:
            if entry := self._take_unmatched(digest):
                self._remove(entry)
            else:
                self._note_early(digest, None, now)

    def report(self, report: WorkerReport) -> None:
        """Take a worker's word for what it holds, and has answered."""
        for held in report.held:
            entry, _ = self._find(held.request_id)
            if entry is not None:
                entry.is_held = True
                entry.attempt = max(entry.attempt, held.attempt)
        for ended in report.ended:
            entry, choice = self._find(ended.request_id)
            if entry is None or entry.admitted is None:
                continue
            entry.attempt = max(entry.attempt, ended.attempt)
            if not ended.was_answered:
                continue
            entry.ended_choices.add(choice)
            is_joined = entry.admitted.num_choices > 1 and not entry.admitted.is_streamed
            if not is_joined and len(entry.ended_choices) >= entry.admitted.num_choices:
                self._remove(entry)

    def forget(self, incoming: Incoming) -> None:
        """Forget a message that somebody has in hand."""
        if entry := self._take_unmatched(digest_of(incoming)):
            self._remove(entry)

    def drop_old(self, now: float) -> None:
        """Forget what is past any deadline."""
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if now - oldest.arrived_at <= self._max_age_s:
                break
            self._remove(oldest)

    def drain(self) -> Iterator[Shadowed]:
        """Take out all that is left, the oldest first."""
        while self._entries:
            entry = next(iter(self._entries.values()))
            self._remove(entry)
            yield entry

    def clear(self) -> None:
        """Forget everything."""
        for _ in self.drain():
            pass
        self._early.clear()

    def _find(self, request_id: RequestId) -> tuple[Shadowed | None, int]:
        if (entry := self._by_request.get(request_id)) is not None:
            return entry, 0
        found = _CHOICE.fullmatch(request_id)
        if found is None:
            return None, 0
        return self._by_request.get(RequestId(found[1])), int(found[2])

    def _insert(self, entry: Shadowed) -> None:
        self._entries[id(entry)] = entry
        self._num_bytes += len(entry.incoming.payload)
        while len(self._entries) > self._max_num or self._num_bytes > self._max_bytes:
            held = (each for each in self._entries.values() if each.is_held)
            self.num_dropped += 1
            self._remove(next(held, None) or next(iter(self._entries.values())))

    def _match(self, entry: Shadowed, message: RequestAdmitted) -> None:
        if id(entry) in self._entries:
            entry.admitted = message
            entry.attempt = max(entry.attempt, message.attempt)
            self._by_request[message.request_id] = entry

    def _take_unmatched(self, digest: bytes) -> Shadowed | None:
        waiting = self._unmatched.get(digest)
        if not waiting:
            return None
        entry = waiting.popleft()
        if not waiting:
            del self._unmatched[digest]
        return entry

    def _remove(self, entry: Shadowed) -> None:
        if self._entries.pop(id(entry), None) is None:
            return
        self._num_bytes -= len(entry.incoming.payload)
        if entry.admitted is not None:
            self._by_request.pop(entry.admitted.request_id, None)
        waiting = self._unmatched.get(entry.digest)
        if waiting is not None and entry in waiting:
            waiting.remove(entry)
            if not waiting:
                del self._unmatched[entry.digest]

    def _note_early(self, digest: bytes, message: RequestAdmitted | None, now: float) -> None:
        self._early.append((now, digest, message))
        self._forget_early(now)

    def _forget_early(self, now: float) -> None:
        while self._early and (
            len(self._early) > _MAX_NUM_EARLY or now - self._early[0][0] > _EARLY_S
        ):
            self._early.popleft()

    def _forget_early_request(self, request_id: RequestId) -> None:
        for position, (at, digest, message) in enumerate(self._early):
            if message is not None and message.request_id == request_id:
                self._early[position] = (at, digest, None)
                return
