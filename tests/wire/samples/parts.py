"""What several samples hold. A sample is a message once as rich and once as minimal as can be."""

from typing import Any

from slipstream.shared.ids import HostId, LeaseId, RequestId, WorkerId
from slipstream.shared.messages.common import Timings, Usage
from slipstream.shared.messages.kv import BlockOrigin, Blocks
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import Constraint, SamplingParameters, TokenLogprobs
from slipstream.shared.telemetry.context import SpanContext

REQUEST = RequestId("q5v0c8m2x7k1j4h9w3n6b0t2")
OTHER_REQUEST = RequestId("a1b2c3d4e5f6g7h8i9j0k1l2")
LEASE = LeaseId("l7d2k9s4f1g6h3j8")
OTHER_LEASE = LeaseId("m8e3l0t5g2h7i4k9")
PREFILL_WORKER = WorkerId("prefill-a1b2c3d4")
DECODE_WORKER = WorkerId("decode-e5f6g7h8")
HOST = HostId("h0st1h0st2h0")
OTHER_HOST = HostId("h0st3h0st4h0")
LAYOUT = "llama:30x3x64:float32:16"
NUMERICS = "q8_0/float32/avx2/1"
MODEL = "smollm2-135m"
FINGERPRINT = "9f86d081884c7d65"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TOKENS = PackedInts([1, 2**16, 2**32 - 1])
BLOCKS = Blocks(PackedInts([3, 4, 5]), PackedInts([1, 1, 2]))
OTHER_BLOCKS = Blocks(PackedInts([9]), PackedInts([7]))
ORIGIN = BlockOrigin(
    host_id=OTHER_HOST,
    arena_epoch=1_234,
    lease_id=OTHER_LEASE,
    worker_id=PREFILL_WORKER,
    layout=LAYOUT,
    model_fingerprint=FINGERPRINT,
    addresses={"tcp": "127.0.0.1:9"},
)
BARE_ORIGIN = BlockOrigin(
    host_id=OTHER_HOST,
    arena_epoch=0,
    lease_id=OTHER_LEASE,
    worker_id=PREFILL_WORKER,
    layout=LAYOUT,
)
LOGPROBS = TokenLogprobs(65_536, -0.5, [65_536, 1], [-0.5, -1.25])
USAGE = Usage(
    num_prompt_tokens=12,
    num_output_tokens=3,
    num_cached_tokens=8,
    num_drafted_tokens=6,
    num_tested_tokens=5,
    num_accepted_tokens=2,
    num_steps=4,
    num_preemptions=1,
    num_draft_steps=3,
)
TIMINGS = Timings(
    queue_ms=0.5,
    prefill_ms=12.25,
    hand_over_ms=0.75,
    ttft_ms=15.5,
    tpot_ms=4.125,
    total_ms=60.0,
)
SMALL_USAGE = Usage(num_prompt_tokens=12, num_output_tokens=3)
ATTEMPT: dict[str, Any] = {"request_id": REQUEST, "attempt": 2}
ENVELOPE: dict[str, Any] = {**ATTEMPT, "scheduler_epoch": 41, "deadline_ms": 29_500}
SPAN = SpanContext(TRACE, "00f067aa0ba902b7")
RICH_SPAN = SpanContext(
    TRACE,
    "00f067aa0ba902b7",
    is_sampled=True,
    start_time_ns=1_700_000_000_000_000_000,
    parent_span_id="b7ad6b7169203331",
    trace_state="vendor=1",
)
ATTEMPT_SPAN = SpanContext(TRACE, "b9c7c989f97918e1")
SAMPLING = SamplingParameters(
    seed=2**53 - 1,
    temperature=0.75,
    top_p=0.875,
    top_k=40,
    min_p=0.0625,
    repetition_penalty=1.125,
    presence_penalty=0.25,
    frequency_penalty=-0.25,
    logit_bias={7: -100.0, 9: 1.5},
    min_tokens=2,
    max_tokens=64,
    ignore_eos=True,
    stop=("\n\n", "Ende"),
    stop_token_ids=(0, 2),
    num_logprobs=2,
    skip_special_tokens=False,
    num_speculative_tokens=3,
    echo=True,
    num_prompt_logprobs=1,
    constraint=Constraint("json", '{"type":"object"}'),
    speculation_mode="rejection",
)
