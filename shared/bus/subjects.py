"""Every subject, with the messages on it: the only place that names one."""

import re
from dataclasses import dataclass
from typing import Any

from slipstream.shared.messages.codec import ClientAnswer
from slipstream.shared.messages.common import Accepted, Failed, Rejected
from slipstream.shared.messages.draft import DraftClose, DraftJob, DraftOpen, DraftTokens
from slipstream.shared.messages.generate import Cancel, Cancelled, GenerateRequest, Resume
from slipstream.shared.messages.jobs import DecodeJob, PrefillJob
from slipstream.shared.messages.kv import (
    Adopt,
    Adopted,
    Audit,
    Audited,
    Commit,
    Committed,
    Grant,
    Granted,
    Known,
    KnownBlocks,
    KvRefused,
    KvRequest,
    Lease,
    Leased,
    Match,
    Matched,
    Prefilled,
    Pull,
    Pulled,
    Reclaim,
    Reclaimed,
    Release,
    Released,
    Renew,
    Renewed,
)
from slipstream.shared.messages.reports import (
    DeadLetter,
    Drain,
    KvEvent,
    PhaseEvent,
    ReportRequest,
    RequestAdmitted,
    RequestsSettled,
    SchedulerState,
    WorkerReport,
)
from slipstream.shared.messages.traces import TraceFound, TraceRequest, TracesFound

PREFIX = "slipstream.v1"
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_UNSAFE = re.compile(r"[^a-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Topic:
    """A subject pattern (placeholders in braces) with what is sent on it and what is answered."""

    pattern: str
    message: Any  # Any: a union is no type for the checker; the codec checks at run time
    reply: Any = None  # Any: as above
    is_json_map: bool = True

    @property
    def name(self) -> str:
        """What it is about, in one word: `kv` of `slipstream.v1.kv.{host_id}.{verb}`."""
        return self.pattern.removeprefix(f"{PREFIX}.").partition(".")[0]

    @property
    def wildcard(self) -> str:
        """The subject that covers all of the topic."""
        return re.sub(r"\{\w+\}", "*", self.pattern)

    def subject(self, **tokens: str) -> str:
        """
        Return the subject for these tokens.

        Raises ValueError for a token that would widen the subject.
        """
        for name, token in tokens.items():
            if not _TOKEN.fullmatch(token):
                raise ValueError(f"{name}: {token!r} can't stand in a subject")
        return self.pattern.format(**tokens)


def model_token(model: str) -> str:
    """Return a model's name as one subject token (`org/Name-1.5` -> `org-name-1-5`)."""
    return _UNSAFE.sub("-", model.lower()).strip("-") or "model"


def last_token(subject: str) -> str:
    """Return what stands after the last dot: the id on topics that end with one."""
    return subject.rpartition(".")[2]


GENERATE = Topic(f"{PREFIX}.generate", GenerateRequest, ClientAnswer)
GENERATE_MODEL = Topic(f"{PREFIX}.generate.{{model}}", GenerateRequest, ClientAnswer)
SUBMIT = Topic(f"{PREFIX}.submit", GenerateRequest)
SUBMIT_MODEL = Topic(f"{PREFIX}.submit.{{model}}", GenerateRequest)
# A dead letter once more; its result lies under the key in the subject. Not for everybody: whoever
# may publish here chooses under which key a result lies.
REQUEUE = Topic(f"{PREFIX}.requeue.{{key}}", GenerateRequest)
REQUEUE_MODEL = Topic(f"{PREFIX}.requeue.{{key}}.{{model}}", GenerateRequest)
CANCEL = Topic(f"{PREFIX}.cancel.{{request_id}}", Cancel, Cancelled | Failed)
RESUME = Topic(f"{PREFIX}.resume.{{request_id}}", Resume, ClientAnswer)
PREFILL = Topic(
    f"{PREFIX}.prefill.{{worker_id}}",
    PrefillJob | Cancel | ReportRequest | Drain,
    Accepted | Rejected | Cancelled | WorkerReport | Failed,
)
DECODE = Topic(
    f"{PREFIX}.decode.{{worker_id}}",
    DecodeJob | Prefilled | Cancel | Resume | Reclaim | ReportRequest | Drain,
    Accepted | Rejected | Cancelled | Reclaimed | WorkerReport | Failed,
)
DRAFT = Topic(
    f"{PREFIX}.draft.{{worker_id}}",
    DraftOpen | DraftClose | DraftJob | ReportRequest | Drain,
    Accepted | Rejected | DraftTokens | WorkerReport | Failed,
)
REPORT = Topic(f"{PREFIX}.report.{{worker_id}}", WorkerReport)
EVENT = Topic(
    f"{PREFIX}.event.{{role}}",
    KvEvent | PhaseEvent | RequestAdmitted | RequestsSettled | SchedulerState,
)
DEAD = Topic(f"{PREFIX}.dead.{{reason}}", DeadLetter)
TRACES = Topic(f"{PREFIX}.traces", TraceRequest, TraceFound | TracesFound | Failed)

KV = Topic(f"{PREFIX}.kv.{{host_id}}.{{verb}}", KvRequest)
KV_VERBS: dict[type, tuple[str, Any]] = {  # Any: a union is no type for the checker
    Match: ("match", Matched | KvRefused | Failed),
    Lease: ("lease", Leased | KvRefused | Failed),
    Commit: ("commit", Committed | KvRefused | Failed),
    Adopt: ("adopt", Adopted | KvRefused | Failed),
    Renew: ("renew", Renewed | KvRefused | Failed),
    Release: ("release", Released | KvRefused | Failed),
    Grant: ("grant", Granted | KvRefused | Failed),
    Pull: ("pull", Pulled | KvRefused | Failed),
    Audit: ("audit", Audited | KvRefused | Failed),
    Known: ("known", KnownBlocks | KvRefused | Failed),
}

MANAGER_VERBS = tuple(verb for verb, _ in KV_VERBS.values())

# Frames of the data plane (shared/kv/transfer), no messages of the codec: not among the topics.
KV_DATA = Topic(f"{PREFIX}.kvdata.{{host_id}}", None)

WORKERS_BUCKET = "slipstream_workers"
LEADER_BUCKET = "slipstream_leader"
RESULTS_BUCKET = "slipstream_results"
SUBMIT_STREAM = "slipstream_submit"
DEAD_STREAM = "slipstream_dead"

SCHEDULER_QUEUE = "scheduler"
DISCOVERY_PREFIX = "$SRV"  # of NATS micro-services: fixed by their protocol
DISCOVERY_STATS = f"{DISCOVERY_PREFIX}.STATS"  # asks all of them
INBOX_PREFIXES = ("_INBOX.", "_INBOX_")
# The server closes the connection of whoever sends it a control line of over 4096 bytes.
MAX_INBOX_LENGTH = 256

TOPICS = (
    GENERATE,
    GENERATE_MODEL,
    SUBMIT,
    SUBMIT_MODEL,
    REQUEUE,
    REQUEUE_MODEL,
    CANCEL,
    RESUME,
    PREFILL,
    DECODE,
    DRAFT,
    KV,
    REPORT,
    EVENT,
    DEAD,
    TRACES,
)

# Where a worker is told what to do, by its role.
WORKER_TOPICS = {"prefill": PREFILL, "decode": DECODE, "draft": DRAFT}


def discovery_subjects(verb: str, name: str, instance_id: str) -> list[str]:
    """Return where a service is asked: with all others, with those of its name, and alone."""
    everybody = f"{DISCOVERY_PREFIX}.{verb}"
    return [everybody, f"{everybody}.{name}", f"{everybody}.{name}.{instance_id}"]


def requeue_subject(key: str, submitted_to: str) -> str:
    """Return where a dead letter is published again; the model in its first subject stays."""
    model = _token_behind(SUBMIT, submitted_to) or _requeued(submitted_to)[1]
    return REQUEUE_MODEL.subject(key=key, model=model) if model else REQUEUE.subject(key=key)


def requeued_key(subject: str) -> str | None:
    """Return under which key a dead letter that was published again has its result."""
    return _requeued(subject)[0]


def subject_model(subject: str) -> str | None:
    """Return the model's token in the subject of a request, if it has one."""
    return (
        _token_behind(GENERATE, subject) or _token_behind(SUBMIT, subject) or _requeued(subject)[1]
    )


def _requeued(subject: str) -> tuple[str | None, str | None]:
    """Return key and model."""
    prefix, _, rest = subject.partition(f"{PREFIX}.{REQUEUE.name}.")
    if prefix or not rest:
        return None, None
    key, _, model = rest.partition(".")
    return key, model or None


def _token_behind(topic: Topic, subject: str) -> str | None:
    start = f"{topic.pattern}."
    return subject.removeprefix(start) if subject.startswith(start) else None


def is_inbox(subject: str) -> bool:
    """Tell whether a reply subject may be published to: clients choose it, so only inboxes may."""
    return (
        subject.startswith(INBOX_PREFIXES)
        and len(subject) <= MAX_INBOX_LENGTH
        and re.fullmatch(r"[!-~]+", subject) is not None
        and not set("*>") & set(subject)
    )
