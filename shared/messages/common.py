"""What several topics share: envelopes, answers to jobs, usage and timings."""

from typing import Literal

import msgspec

from slipstream.shared.ids import RequestId, WorkerId

PROTOCOL_VERSION = 1

Role = Literal["scheduler", "prefill", "decode", "draft", "kv", "gateway"]
LatencyClassName = Literal["interactive", "standard", "batch"]
Route = Literal["auto", "remote", "local"]
FinishReason = Literal["stop", "length", "abort"]
Phase = Literal["unknown", "waiting", "prefilling", "handing_over", "decoding", "ended"]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of control messages: maps, unknown fields ignored, new fields only with defaults."""


class AttemptMessage(Message, frozen=True, kw_only=True):
    """Envelope of everything said about one attempt at a request."""

    request_id: RequestId
    attempt: int
    # Of the scheduler behind it; whoever has heard of a later one refuses it. 0: of none.
    scheduler_epoch: int = 0
    deadline_ms: int | None = None  # what remains of the request's time when this was sent


class Accepted(Message, frozen=True, tag="accepted"):
    """
    The work is taken: answer of a worker to a job, and first message of a client's stream.

    Towards clients the seed and the number of prompt tokens are set.
    """

    request_id: RequestId
    attempt: int = 0
    worker_id: WorkerId | None = None
    model: str | None = None
    seed: int | None = None
    num_prompt_tokens: int | None = None
    trace_id: str | None = None


RejectionReason = Literal[
    "no_seat", "cancelled", "draining", "stale_epoch", "wrong_model", "invalid"
]


class Rejected(Message, frozen=True, tag="rejected"):
    """A worker does not take the job; nothing was done and nothing is held."""

    request_id: RequestId
    attempt: int
    reason: RejectionReason
    message: str = ""


class Failed(Message, frozen=True, tag="failed"):
    """The one ending of a request that could not be served, or the answer to a bad message."""

    code: str
    message: str
    request_id: RequestId | None = None
    attempt: int = 0
    field: str | None = None  # the field of the request that is wrong
    limit: float | None = None  # the limit that it violates
    retry_after_ms: int | None = None
    trace_id: str | None = None
    choice: int = 0


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Tokens of one request: what was delivered and what it took."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0
    num_drafted_tokens: int = 0  # that steps took in to verify
    num_tested_tokens: int = 0  # drafts that the target looked at
    num_accepted_tokens: int = 0
    num_steps: int = 0  # decode steps the sequence took part in
    num_preemptions: int = 0
    num_draft_steps: int = 0  # of the steps those that verified drafts


class Timings(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Milliseconds since the scheduler received the request, by monotonic clocks."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    hand_over_ms: float = 0.0  # until a prefilled sequence's KV was the decode worker's own
    ttft_ms: float = 0.0  # time to first token
    tpot_ms: float | None = None  # time per output token after the first; None for a single one
    total_ms: float = 0.0
