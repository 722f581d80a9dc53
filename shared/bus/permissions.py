"""
What each role may publish and listen to on NATS, and nothing else.

Answers to questions need no entry: `allow_responses` of the server lets whoever was asked answer
once. What is answered in a stream, or by another than who was asked, stands here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from slipstream.shared.bus import subjects
from slipstream.shared.bus.subjects import Topic, discovery_subjects

NatsRole = Literal[
    "scheduler", "kv", "prefill", "decode", "draft", "gateway", "operator", "client", "guest"
]
NATS_ROLES: tuple[NatsRole, ...] = (
    "scheduler",
    "kv",
    "prefill",
    "decode",
    "draft",
    "gateway",
    "operator",
    "client",
    "guest",
)
# Who comes without a key, from this machine: see `no_auth_user` of the server.
GUEST: NatsRole = "guest"
# Who makes the bucket of worker records. Whoever may make a stream says what it captures.
BUCKET_MAKER: NatsRole = "scheduler"

_API = "$JS.API"
_WORKERS = f"KV_{subjects.WORKERS_BUCKET}"
_LEADER = f"KV_{subjects.LEADER_BUCKET}"
_RESULTS = f"KV_{subjects.RESULTS_BUCKET}"
_SUBMIT = subjects.SUBMIT_STREAM
_DEAD = subjects.DEAD_STREAM
_STREAMS = (_WORKERS, _LEADER, _RESULTS, _SUBMIT, _DEAD)

_ASKING = (
    subjects.GENERATE,
    subjects.GENERATE_MODEL,
    subjects.CANCEL,
    subjects.RESUME,
)
_SUBMITTING = (subjects.SUBMIT, subjects.SUBMIT_MODEL)
# Who is sent streams of tokens.
_ASKERS: tuple[NatsRole, ...] = ("guest", "client", "operator", "gateway")
_LEASING = ("match", "lease", "commit", "renew", "release")


@dataclass(frozen=True)
class Permissions:
    """Allow-lists of one role."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool  # whether it may answer what it is asked


def inbox_prefix(role: NatsRole) -> str:
    """Return what the inboxes of a role begin with: nobody else reads what arrives there."""
    return "_INBOX" if role == GUEST else f"_INBOX_{role}"


def permissions_of(role: NatsRole) -> Permissions:
    """Return what a role may do."""
    publish, listen = _PUBLISH[role], _SUBSCRIBE[role]
    is_service = role not in ("operator", "client", "guest")
    found = discovery_of(role) if is_service else ()
    return Permissions(
        publish=tuple(dict.fromkeys(publish)),
        subscribe=(_inbox(role), *(topic.wildcard for topic in listen), *found),
        # The operator's `up` keeps traces, and is asked for them.
        answers=is_service or role == "operator",
    )


def discovery_of(role: NatsRole) -> tuple[str, ...]:
    """Return where a service is asked what it is and how it does."""
    return tuple(
        subject
        for verb in ("PING", "INFO", "STATS")
        for subject in discovery_subjects(verb, f"slipstream-{role}", "*")
    )


def _inbox(role: NatsRole) -> str:
    return f"{inbox_prefix(role)}.>"


def _inboxes(roles: Iterable[NatsRole]) -> tuple[str, ...]:
    return tuple(map(_inbox, roles))


def _on(*topics: Topic) -> tuple[str, ...]:
    return tuple(topic.wildcard for topic in topics)


def _kv(*verbs: str) -> tuple[str, ...]:
    return tuple(subjects.KV.wildcard.removesuffix("*") + verb for verb in verbs)


def _keys(bucket: str) -> str:
    return f"$KV.{bucket}.*"


def _info(*streams: str) -> tuple[str, ...]:
    return tuple(f"{_API}.STREAM.INFO.{stream}" for stream in streams)


def _made(*streams: str) -> tuple[str, ...]:
    """Return how streams are made, and brought to other limits."""
    return tuple(
        f"{_API}.STREAM.{verb}.{each}" for each in streams for verb in ("CREATE", "UPDATE")
    )


def _read(bucket: str) -> tuple[str, ...]:
    """Return how the keys of a bucket are listed, and each is read."""
    stream = f"KV_{bucket}"
    return (*_info(stream), f"{_API}.DIRECT.GET.{stream}.{_keys(bucket)}")


# Its own entry in the registry. All workers share the bucket: NATS has no name for a part of a key.
_RECORD = (*_info(_WORKERS), _keys(subjects.WORKERS_BUCKET))
_REGISTRY = _read(subjects.WORKERS_BUCKET)
_CLIENT = (
    *_on(*_ASKING, *_SUBMITTING),
    # Who works here, and how long a prompt may be: `slipstream chat` says so.
    *_REGISTRY,
    *_read(subjects.RESULTS_BUCKET),
    # What is the largest that can be submitted.
    f"{_API}.STREAM.NAMES",
    *_info(_SUBMIT),
)

_PUBLISH: dict[NatsRole, tuple[str, ...]] = {
    "scheduler": (
        # Its own too: submissions and several choices are asked for in its own name.
        *_inboxes((*_ASKERS, "scheduler")),
        *_on(subjects.PREFILL, subjects.DECODE, subjects.DRAFT, subjects.DEAD),
        # Which of them leads, and what the one that stands by needs to know.
        subjects.EVENT.subject(role="scheduler"),
        *_kv("known"),
        *_info(*_STREAMS),
        *_made(*_STREAMS),
        *_REGISTRY,
        *_read(subjects.RESULTS_BUCKET),
        _keys(subjects.RESULTS_BUCKET),
        # The lease of the one scheduler that is active, which the others watch.
        *_read(subjects.LEADER_BUCKET),
        _keys(subjects.LEADER_BUCKET),
        f"{_API}.STREAM.MSG.GET.{_LEADER}",
        f"{_API}.CONSUMER.CREATE.{_LEADER}.>",
        f"{_API}.CONSUMER.DELETE.{_LEADER}.*",
        # The queue of submissions and its one consumer.
        f"{_API}.CONSUMER.DURABLE.CREATE.{_SUBMIT}.*",
        f"{_API}.CONSUMER.CREATE.{_SUBMIT}.*",
        f"{_API}.CONSUMER.INFO.{_SUBMIT}.*",
        f"{_API}.CONSUMER.MSG.NEXT.{_SUBMIT}.*",
        f"{_API}.STREAM.NAMES",
        f"$JS.ACK.{_SUBMIT}.>",
    ),
    "kv": (
        *_on(subjects.REPORT, subjects.DECODE, subjects.KV_DATA),
        subjects.EVENT.subject(role="kv"),
        # Blocks, from one host's manager to another's.
        _inbox("kv"),
        *_RECORD,
    ),
    "prefill": (
        *_on(subjects.REPORT, subjects.DECODE),
        *_kv(*_LEASING),
        *_RECORD,
    ),
    "decode": (
        *_inboxes((*_ASKERS, "scheduler")),
        *_on(subjects.REPORT, subjects.DRAFT),
        *_kv(*_LEASING, "adopt", "grant", "pull"),
        *_RECORD,
        *_REGISTRY,
    ),
    "draft": (*_on(subjects.REPORT), *_RECORD),
    "gateway": (*_on(*_ASKING), subjects.DISCOVERY_STATS),
    "operator": (
        *_CLIENT,
        *_on(subjects.PREFILL, subjects.DECODE, subjects.DRAFT, subjects.TRACES),
        # Under which key a result lies is chosen by who submits a job again.
        *_on(subjects.REQUEUE, subjects.REQUEUE_MODEL),
        *_kv("audit", "known"),
        f"{subjects.DISCOVERY_PREFIX}.>",
        *_REGISTRY,
        *_read(subjects.LEADER_BUCKET),
        # Streams, their consumers, dead letters; and to begin anew with them.
        f"{_API}.INFO",
        f"{_API}.STREAM.LIST",
        *_info(*_STREAMS),
        *(f"{_API}.STREAM.DELETE.{each}" for each in _STREAMS),
        f"{_API}.CONSUMER.INFO.{_SUBMIT}.*",
        f"{_API}.STREAM.MSG.GET.{_DEAD}",
        f"{_API}.STREAM.MSG.DELETE.{_DEAD}",
        f"{_API}.DIRECT.GET.{_DEAD}",
        _keys(subjects.RESULTS_BUCKET),
    ),
    "client": _CLIENT,
    "guest": _CLIENT,
}

_SUBSCRIBE: dict[NatsRole, tuple[Topic, ...]] = {
    "scheduler": (*_ASKING, subjects.REPORT, subjects.EVENT),
    "kv": (subjects.KV, subjects.KV_DATA),
    "prefill": (subjects.PREFILL,),
    "decode": (subjects.DECODE, subjects.REPORT),
    "draft": (subjects.DRAFT,),
    "gateway": (subjects.REPORT,),
    "operator": (subjects.REPORT, subjects.EVENT, subjects.DEAD, subjects.TRACES),
    "client": (),
    "guest": (),
}
