"""Work that the scheduler and the prefill worker give to workers."""

from typing import Literal

import msgspec

from slipstream.shared.ids import HostId, LeaseId, WorkerId
from slipstream.shared.messages.common import AttemptMessage, LatencyClassName, Route
from slipstream.shared.messages.kv import BlockOrigin
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters, TokenLogprobs
from slipstream.shared.telemetry.context import SpanContext

Encoding = Literal["json", "msgpack"]


class ReplyTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where and how the client wants its answer."""

    subject: str
    encoding: Encoding = "json"
    is_streamed: bool = False
    # Where frames of a step to one gateway travel as one FrameBatch: its inbox for those.
    gateway_id: str | None = None


class SequenceJob(AttemptMessage, frozen=True, kw_only=True):
    """The whole request, so that any worker can go on from any point."""

    model: str
    prompt_token_ids: PackedInts
    sampling: SamplingParameters
    reply: ReplyTarget
    root_span: SpanContext
    attempt_span: SpanContext
    output_token_ids: PackedInts = PackedInts()  # already emitted by earlier attempts
    choice: int = 0
    route: Route = "remote"
    route_reason: str = ""
    queue_ms: float = 0.0  # arrival to placement
    elapsed_ms: float = 0.0  # arrival to the moment this message was sent
    num_cached_tokens: int = 0
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    adapter: str = ""
    allow_other_numerics: bool = False
    # What another scheduler needs to know when it takes over.
    latency_class: LatencyClassName | None = None
    client_inbox: str = ""  # empty, or not the reply's subject: a scheduler takes the answer
    is_alone: bool = False  # in steps of its own: workers have died in steps that it was in


class PrefillJob(SequenceJob, frozen=True, kw_only=True, tag="prefill_job"):
    """Compute the prompt's KV and hand the sequence to the named decode worker."""

    decode_worker_id: WorkerId
    decode_host_id: HostId


class HandOver(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """
    A prefilled sequence: its KV by reference, never by value.

    The first `num_computed_tokens` positions hold KV; the first token is sampled and has none.
    Between hosts `block_ids` name the source's table and the decode host pulls them.
    """

    lease_id: LeaseId
    host_id: HostId
    prefill_worker_id: WorkerId
    block_ids: PackedInts
    generations: PackedInts
    num_computed_tokens: int
    first_token_id: int
    first_token_logprobs: TokenLogprobs | None = None
    arena_epoch: int = 0
    num_cached_tokens: int = 0
    num_chunks: int = 0
    prefill_ms: float = 0.0
    origin: BlockOrigin | None = None  # for a decode worker of another host


class DecodeJob(SequenceJob, frozen=True, kw_only=True, tag="decode_job"):
    """Decode a sequence: handed over by a prefill worker, or (without `hand_over`) its prompt."""

    hand_over: HandOver | None = None
