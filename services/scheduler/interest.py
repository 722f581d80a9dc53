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
_MAX_NUM_PROBES = 200  # at a time; with more clients each is asked less often
_MIN_NUM_MISSES = 2
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
    missed_at: float | None = None
    first_missed_at: float | None = None
    num_misses: int = 0
    was_there: bool = False

    @property
    def is_unknowable(self) -> bool:
        """Nobody ever listened beside the inbox: that says nothing of who listens on it."""
        return self.is_beside and self.num_misses > 0 and not self.was_there


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
        due = []
        for name, record in wanted.items():
            watched = self._watched.get(name) or self._watch(name, record)
            _settle(watched)
            if not watched.is_unknowable:
                asked_at = -1.0 if watched.asked_at is None else watched.asked_at
                due.append((asked_at, watched.key, record))
        due.sort(key=lambda each: each[:2])
        for _, key, _ in due[:_MAX_NUM_PROBES]:
            self._watched[self._names[key]].asked_at = now
        return [_probe(key, record) for _, key, record in due[:_MAX_NUM_PROBES]]

    def missed(self, key: str, now: float) -> None:
        """Take the server's word that nobody listened."""
        name = self._names.get(key)
        if name is not None:
            self._watched[name].missed_at = now

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


def _settle(watched: _Watched) -> None:
    """Take in how the last probe went."""
    if watched.asked_at is None:
        return
    if watched.missed_at is not None and watched.missed_at >= watched.asked_at:
        watched.num_misses += 1
        if watched.first_missed_at is None:
            watched.first_missed_at = watched.missed_at
    else:
        watched.was_there = True
        watched.num_misses = 0
        watched.first_missed_at = None


def _is_gone(watched: _Watched | None, now: float) -> bool:
    return (
        watched is not None
        and not watched.is_unknowable
        and watched.num_misses >= _MIN_NUM_MISSES
        and watched.first_missed_at is not None
        and now - watched.first_missed_at >= GONE_AFTER_S
    )
