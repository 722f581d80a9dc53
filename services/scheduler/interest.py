"""
Notice clients that went away while their request waits, or while nothing of it can be sent.

A message with a reply subject, sent where nobody listens, is answered by the NATS server: that is
all there is to go by. A streaming client gets a keep-alive, which it waits for anyway. A plain one
takes the first message for its answer, so the probe goes beside its inbox: clients take their
answers on `<prefix>.*`, and drop what they did not ask for. One that doesn't is not probed any
more, as nobody ever listened there; its deadline ends its request.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.services.scheduler.records import RequestRecord

PROBE_S = 1.0
GONE_AFTER_S = 5.0  # of probes that all failed
# At a time, which takes the server and us some ten milliseconds; with more clients each is asked
# less often.
MAX_NUM_PROBES = 500
_MIN_NUM_MISSES = 3  # of as many probes
_SUSPECT_S = 2.0  # after so long who missed one is asked before others: soon it is known
_BESIDE = "slipstream-probe"
_NUM_SHARED_TOKENS = 3  # `_INBOX.<client>.<request>`: the client listens to all of its own


class Probe(NamedTuple):
    """Whom to ask."""

    key: str  # what the server's answer names
    subject: str
    record: RequestRecord | None  # a stream's: it is sent a keep-alive


@dataclass
class _Watched:
    key: str
    is_beside: bool  # the probe goes beside the inbox, where somebody may never have listened
    asked_at: float | None = None
    is_missed: bool = False  # the last probe
    first_missed_at: float | None = None
    num_misses: int = 0  # probes in a row
    was_there: bool = False

    @property
    def is_unknowable(self) -> bool:
        """Nobody ever listened beside the inbox: that says nothing of who listens on it."""
        return self.is_beside and self.num_misses > 0 and not self.was_there

    def turn(self, now: float) -> tuple[bool, float]:
        """Return its place among those to ask, the least first: suspects, if not just asked."""
        asked_at = float("-inf") if self.asked_at is None else self.asked_at
        is_pressing = self.num_misses > 0 and now - asked_at >= _SUSPECT_S
        return (not is_pressing, asked_at)

    def ask(self, now: float) -> None:
        """Note a probe. Of the last one nothing was heard, unless it missed: somebody got it."""
        if self.asked_at is not None and not self.is_missed:
            self.was_there = True
            self.num_misses = 0
            self.first_missed_at = None
        self.asked_at = now
        self.is_missed = False

    def miss(self, now: float) -> None:
        """Note that nobody got the last probe; each counts once, however late the next one is."""
        if self.asked_at is None or self.is_missed:
            return
        self.is_missed = True
        self.num_misses += 1
        if self.first_missed_at is None:
            self.first_missed_at = now


class InterestBook:
    """Who was asked, and who seems gone. Pure: times come in as values."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._names: dict[str, str] = {}  # of those watched, by their keys
        self._num_keys = 0

    def probes(self, records: Iterable[RequestRecord], now: float) -> list[Probe]:
        """Return whom to ask now, of all requests whose clients nobody else watches."""
        wanted = {_name(record): record for record in records if _is_wanted(record)}
        for name in self._watched.keys() - wanted.keys():
            del self._names[self._watched.pop(name).key]
        each = ((self._watched.get(name) or self._watch(name, wanted[name])) for name in wanted)
        due = [watched for watched in each if not watched.is_unknowable]
        due.sort(key=lambda watched: watched.turn(now))
        del due[MAX_NUM_PROBES:]
        for watched in due:
            watched.ask(now)
        return [_probe(watched.key, wanted[self._names[watched.key]]) for watched in due]

    def missed(self, key: str, now: float) -> None:
        """Take the server's word that nobody listened."""
        name = self._names.get(key)
        if name is not None:
            self._watched[name].miss(now)

    def forget(self) -> None:
        """Begin anew: after trouble with the connection absence means nothing."""
        self._watched.clear()
        self._names.clear()

    def gone(self, records: Iterable[RequestRecord], now: float) -> list[RequestRecord]:
        """Return the requests whose clients were absent for long enough."""
        return [each for each in records if _is_gone(self._watched.get(_name(each)), now)]

    def _watch(self, name: str, record: RequestRecord) -> _Watched:
        self._num_keys += 1
        watched = _Watched(str(self._num_keys), is_beside=not record.reply.is_streamed)
        self._names[watched.key] = name
        self._watched[name] = watched
        return watched


def _name(record: RequestRecord) -> str:
    """Return what is asked for: a stream, or all plain requests of one client."""
    if record.reply.is_streamed:
        return record.request_id
    return record.client_inbox.rpartition(".")[0]


def _is_wanted(record: RequestRecord) -> bool:
    if record.reply.is_streamed:
        return record.phase != "decoding"  # then its decode worker asks
    return record.client_inbox.count(".") + 1 >= _NUM_SHARED_TOKENS


def _probe(key: str, record: RequestRecord) -> Probe:
    if record.reply.is_streamed:
        return Probe(key, record.client_inbox, record)
    return Probe(key, f"{_name(record)}.{_BESIDE}", None)


def _is_gone(watched: _Watched | None, now: float) -> bool:
    return (
        watched is not None
        and not watched.is_unknowable
        and watched.num_misses >= _MIN_NUM_MISSES
        and watched.first_missed_at is not None
        and now - watched.first_missed_at >= GONE_AFTER_S
    )
