"""Samples of the work that is given to workers."""

from typing import Any

import msgspec

from slipstream.shared.messages.jobs import DecodeJob, HandOver, PrefillJob, ReplyTarget
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters

from .parts import (
    ATTEMPT,
    ATTEMPT_SPAN,
    DECODE_WORKER,
    ENVELOPE,
    HOST,
    LEASE,
    LOGPROBS,
    MODEL,
    ORIGIN,
    PREFILL_WORKER,
    RICH_SPAN,
    SAMPLING,
    SPAN,
    TOKENS,
)

JOB: dict[str, Any] = {
    **ENVELOPE,
    "model": MODEL,
    "prompt_token_ids": TOKENS,
    "sampling": SAMPLING,
    "reply": ReplyTarget("_INBOX.abc.1", "msgpack", is_streamed=True, gateway_id="gateway-1"),
    "root_span": RICH_SPAN,
    "attempt_span": ATTEMPT_SPAN,
    "output_token_ids": PackedInts([5, 6]),
    "choice": 1,
    "route": "local",
    "route_reason": "short_prompt",
    "queue_ms": 1.5,
    "elapsed_ms": 2.75,
    "num_cached_tokens": 16,
    "priority": 3,
    "tenant": "acme",
    "cache_salt": "salt",
    "adapter": "poet",
    "allow_other_numerics": True,
    "latency_class": "batch",
    "client_inbox": "_INBOX.abc.1",
    "is_alone": True,
}
SMALL_JOB: dict[str, Any] = {
    **ATTEMPT,
    "model": MODEL,
    "prompt_token_ids": TOKENS,
    "sampling": SamplingParameters(seed=7),
    "reply": ReplyTarget("_INBOX.abc.1"),
    "root_span": SPAN,
    "attempt_span": ATTEMPT_SPAN,
}
HAND_OVER = HandOver(
    lease_id=LEASE,
    host_id=HOST,
    prefill_worker_id=PREFILL_WORKER,
    block_ids=PackedInts([3, 4, 5]),
    generations=PackedInts([1, 1, 2]),
    num_computed_tokens=33,
    first_token_id=65_536,
    first_token_logprobs=LOGPROBS,
    arena_epoch=1_234,
    num_cached_tokens=16,
    num_chunks=2,
    prefill_ms=12.25,
    origin=ORIGIN,
)

SAMPLES: dict[str, tuple[msgspec.Struct, msgspec.Struct]] = {
    "prefill_job": (
        PrefillJob(
            **JOB,
            decode_worker_id=DECODE_WORKER,
            decode_host_id=HOST,
        ),
        PrefillJob(**SMALL_JOB, decode_worker_id=DECODE_WORKER, decode_host_id=HOST),
    ),
    "decode_job": (DecodeJob(**JOB, hand_over=HAND_OVER), DecodeJob(**SMALL_JOB)),
}
