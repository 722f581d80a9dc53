"""What the server and its client say in trouble, by stable names and with what to do. No I/O."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import nats.errors

# Below it results can't be kept for a time of their own.
MIN_VERSION = (2, 11)

_DENIED = re.compile(
    r'permissions violation for (publish|subscription) (?:to|of) "([^"\s]+)', re.IGNORECASE
)
_CREDENTIALS = "check the credentials of this service"
# By type, the special ones first.
_BY_TYPE: tuple[tuple[type[Exception], str, str | None], ...] = (
    (nats.errors.SlowConsumerError, "nats_slow_consumer", "too busy to take it: it was dropped"),
    (nats.errors.FlushTimeoutError, "nats_write_stalled", "the server, or the way to it, is full"),
    (nats.errors.UnexpectedEOF, "nats_connection_broken", None),
    (nats.errors.StaleConnectionError, "nats_silent", None),
    (nats.errors.AuthorizationError, "nats_not_authorized", _CREDENTIALS),
    (OSError, "nats_unreachable", None),
)
# What comes in words alone, by some of them.
_BY_WORDS = (
    ("authorization", "nats_not_authorized", _CREDENTIALS),
    ("authentication", "nats_not_authorized", _CREDENTIALS),
    ("maximum connections", "nats_connections_exceeded", "raise max_connections of the server"),
    ("maximum payload", "nats_payload_refused", "raise max_payload of the server"),
    ("slow consumer", "nats_slow_consumer", "raise max_pending and write_deadline of the server"),
    ("stale connection", "nats_silent", None),
)


class Trouble(NamedTuple):
    """A line of the log."""

    event: str
    fields: Mapping[str, str]


class Denial(NamedTuple):
    """What we may not do."""

    verb: str  # publish or subscription
    subject: str


def denial_in(error: Exception) -> Denial | None:
    """Return what the server doesn't let us do, if that is what it says."""
    found = _DENIED.search(str(error))
    return Denial(found[1].lower(), found[2]) if found is not None else None


def trouble_of(error: Exception) -> Trouble:
    """Return the name of what happened, and what to do."""
    if (denial := denial_in(error)) is not None:
        remedy = "another role's key, or old permissions: see `slipstream keys init`"
        return Trouble("nats_permission_denied", {**denial._asdict(), "remedy": remedy})
    fields = {"error": str(error) or type(error).__name__}
    if isinstance(error, nats.errors.SlowConsumerError):
        fields["subject"] = error.subject
    event, remedy_or_none = _named(error, fields["error"].lower())
    if remedy_or_none is not None:
        fields["remedy"] = remedy_or_none
    return Trouble(event, fields)


def _named(error: Exception, words: str) -> tuple[str, str | None]:
    for kind, event, remedy in _BY_TYPE:
        if isinstance(error, kind):
            return event, remedy
    for part, event, remedy in _BY_WORDS:
        if part in words:
            return event, remedy
    return "nats_error", None


def server_problem(info: Mapping[str, Any]) -> str | None:
    """
    Return why a server that introduced itself so can't be used, or None.

    Any: values of every type, as JSON has them.
    """
    if info.get("headers") is not True:
        version = info.get("version", "unknown")
        return (
            f"the server (version {version}) has no message headers, without which nobody can tell "
            "that nobody listens: use nats-server 2.11 or later, and leave no_header_support out "
            "of its settings"
        )
    return None


def is_old(info: Mapping[str, Any]) -> bool:
    """Tell whether a server lacks what only durable submissions need. Any: as above."""
    found = re.match(r"(\d+)\.(\d+)", str(info.get("version", "")))
    return found is not None and (int(found[1]), int(found[2])) < MIN_VERSION
