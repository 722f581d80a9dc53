"""What workers say of themselves: the registry record, reports (the truth) and events (hints)."""

from typing import Literal

import msgspec

from slipstream.shared.ids import HostId, RequestId, WorkerId
from slipstream.shared.messages.common import FinishReason, Message, Phase, Role, Usage
from slipstream.shared.messages.jobs import DecodeJob, PrefillJob
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.telemetry.context import SpanContext


class WorkerRecord(Message, frozen=True, tag="worker_record"):
    """Entry of the registry bucket: what a worker is. Liveness is the report, not this."""

    worker_id: WorkerId
    role: Role
    epoch: int
    protocol: int
    version: str
    model: str = ""
    model_fingerprint: str = ""
    layout: str = ""
    numerics: str = ""
    host_id: HostId | None = None
    num_seats: int = 0
    num_blocks: int = 0
    max_context_length: int = 0
    is_draining: bool = False


class HeldSequence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One (request, attempt) that a worker holds."""

    request_id: RequestId
    attempt: int
    phase: Phase
    next_index: int = 0
    token_ids: PackedInts = PackedInts()  # emitted since the last report (all, in a full report)


class EndedSequence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """
    One (request, attempt) that a worker no longer holds; repeated in a few reports.

    `finish_reason` for a served request, `code` for a failed one, neither when it was handed over.
    `was_answered` says whether the client got its ending from this worker.
    """

    request_id: RequestId
    attempt: int
    was_answered: bool = False
    finish_reason: FinishReason | None = None
    code: str | None = None
    message: str = ""
    usage: Usage | None = None
    ttft_ms: float = 0.0
    total_ms: float = 0.0


class WorkerDeath(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """
    A worker's process has ended: its host's manager saw it, and tells it in a few reports.

    `in_step` are the (request, attempt) whose step ran when it did; of a worker that stopped, none.
    """

    worker_id: WorkerId
    epoch: int
    in_step: list[tuple[RequestId, int]] = []


class WorkerReport(Message, frozen=True, tag="worker_report"):
    """Every 300 ms and at each phase change; full lists on request and after a reconnect."""

    worker_id: WorkerId
    role: Role
    epoch: int
    number: int  # counts the reports of this epoch
    num_seats: int
    num_free_seats: int
    num_free_blocks: int = 0
    num_blocks: int = 0
    host_id: HostId | None = None
    scheduler_epoch: int = 0
    is_full: bool = False
    is_draining: bool = False
    held: list[HeldSequence] = []
    ended: list[EndedSequence] = []
    kv_class: str = ""  # KV may only be moved between workers where this is the same
    # Measured over the steps of late; 0: nothing to measure yet.
    prompt_tokens_per_s: float = 0.0  # of prompts, in the time that was theirs
    pulled_tokens_per_s: float = 0.0  # of KV from other hosts
    jobs: list[PrefillJob | DecodeJob] = []  # of what is held, for a scheduler that takes over
    deaths: list[WorkerDeath] = []  # of workers on the host, as its KV manager saw them


class ReportRequest(Message, frozen=True, tag="report_request"):
    """Ask a worker for a full report; the answer is a WorkerReport."""

    scheduler_epoch: int = 0
    with_jobs: bool = False  # from a scheduler that takes over: also the jobs of what is held


class Drain(Message, frozen=True, tag="drain"):
    """Tell a worker to take no more, finish what it holds and end; the answer is a full report."""


class LeaderRecord(Message, frozen=True, tag="leader_record"):
    """Entry of the leader bucket. The revision of the first one of a term is its epoch."""

    scheduler_id: WorkerId


class ForwardedRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A client's message as it came, for a standby that was not there to hear it."""

    subject: str
    payload: bytes
    headers: dict[str, str] = {}
    elapsed_ms: float = 0.0


class RequestAdmitted(Message, frozen=True, kw_only=True, tag="request_admitted"):
    """
    What the active scheduler has made of a client's message.

    A standby keeps message and answer until the request has ended: a successor admits it under the
    same id and with the same seed. `digest` is of its reply subject and its bytes.
    """

    scheduler_epoch: int
    digest: bytes
    request_id: RequestId
    reply: str
    seed: int
    root_span: SpanContext
    attempt: int = 0
    num_choices: int = 1
    is_streamed: bool = False
    message: ForwardedRequest | None = None


class RequestsSettled(Message, frozen=True, kw_only=True, tag="requests_settled"):
    """Requests that have their ending, by id; and messages that were refused, by digest."""

    scheduler_epoch: int
    request_ids: list[RequestId] = []
    digests: list[bytes] = []


class SchedulerState(Message, frozen=True, kw_only=True, tag="scheduler_state"):
    """
    What a scheduler is, once a second and at each change.

    A standby that is new asks for all that is open; an active one that leaves asks for a successor.
    """

    scheduler_id: WorkerId
    state: Literal["active", "standby", "leaving"]
    scheduler_epoch: int = 0
    is_new: bool = False


class KvEvent(msgspec.Struct, frozen=True, array_like=True, tag="kv_event"):
    """
    Hashes of blocks that entered or left a host's prefix index; numbered per (host, epoch) from 1.

    One without any says which number is the last. Who misses a number asks for all (`Known`).
    """

    host_id: HostId
    epoch: int
    number: int
    stored: list[bytes]
    removed: list[bytes]


class PhaseEvent(msgspec.Struct, frozen=True, array_like=True, tag="phase_event"):
    """A request changed its phase; for dashboards only."""

    worker_id: WorkerId
    epoch: int
    number: int
    request_id: RequestId
    attempt: int
    phase: Phase


class DeadLetter(Message, frozen=True, tag="dead_letter"):
    """A durable request that could not be served, with the bytes as they came."""

    reason: str
    payload: bytes
    num_deliveries: int
    message: str = ""
    key: str = ""  # of its result
    subject: str = ""  # where it was published
