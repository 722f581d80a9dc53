"""
Frozen bytes of every message: an old service and a new one must go on understanding each other.

A changed byte is a changed protocol. A new field (with a default) changes the rich sample: move its
frozen file to `golden/older/` under a name of its own, where it is read for ever, and write it
anew. The file is long because it holds a sample of everything that travels.
"""

import importlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.shared.ids import HostId, LeaseId, RequestId, WorkerId
from slipstream.shared.messages.codec import decode_request, decoder_of, encode
from slipstream.shared.messages.common import Accepted, Failed, Rejected, Timings, Usage
from slipstream.shared.messages.draft import (
    DraftClose,
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftTokens,
    DraftWant,
)
from slipstream.shared.messages.generate import (
    Cancel,
    Cancelled,
    ChatMessage,
    Choice,
    Completion,
    ContentPart,
    EchoedPrompt,
    Finished,
    FrameBatch,
    GenerateRequest,
    Resume,
    TokenFrame,
)
from slipstream.shared.messages.jobs import DecodeJob, HandOver, PrefillJob, ReplyTarget
from slipstream.shared.messages.kv import (
    Adopt,
    Adopted,
    ArenaHello,
    ArenaWelcome,
    Audit,
    Audited,
    Blocks,
    Commit,
    Committed,
    Fork,
    Forked,
    Grant,
    Granted,
    KvRefused,
    Lease,
    Leased,
    LeaseRenewal,
    LeaseSummary,
    Match,
    Matched,
    Pull,
    Pulled,
    Reclaim,
    Reclaimed,
    Release,
    Released,
    Renew,
    Renewed,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import (
    DeadLetter,
    EndedSequence,
    HeldSequence,
    KvEvent,
    LeaderRecord,
    PhaseEvent,
    ReportRequest,
    WorkerRecord,
    WorkerReport,
)
from slipstream.shared.messages.sampling import Constraint, SamplingParameters, TokenLogprobs
from slipstream.shared.telemetry.context import SpanContext

GOLDEN = Path(__file__).parent / "golden"
MODULES = ("common", "generate", "jobs", "kv", "draft", "reports")

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
)
TIMINGS = Timings(queue_ms=0.5, prefill_ms=12.25, ttft_ms=15.5, tpot_ms=4.125, total_ms=60.0)
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
)
ECHOED_PROMPT = EchoedPrompt(token_ids=TOKENS, text="Grüße", logprobs=[None, LOGPROBS, LOGPROBS])
FRAME = TokenFrame(REQUEST, 2, 17, 64, TOKENS, 'Grüße, "世界" \n', choice=1, logprobs=[LOGPROBS])
SMALL_FRAME = TokenFrame(REQUEST, 0, 0, 0, PackedInts(), "")
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
)
BOOKS: dict[str, Any] = {
    "host_id": HOST,
    "epoch": 1_234,
    "num_blocks": 64,
    "num_free": 40,
    "num_granted": 8,
    "num_leased": 6,
    "num_committed": 5,
    "num_cached": 4,
    "num_quarantined": 1,
    "num_leases": 2,
}

# Each message once with every field set to something else than its default, once with none.
SAMPLES: dict[str, tuple[msgspec.Struct, msgspec.Struct]] = {
    "accepted": (
        Accepted(REQUEST, 2, DECODE_WORKER, MODEL, 42, 12, TRACE),
        Accepted(REQUEST),
    ),
    "rejected": (
        Rejected(REQUEST, 2, "no_seat", "32 of 32 seats are taken"),
        Rejected(REQUEST, 2, "draining"),
    ),
    "failed": (
        Failed("invalid_request", "top_p: too high", REQUEST, 2, "top_p", 1.0, 250, TRACE, 1),
        Failed("overloaded", "the queue is full"),
    ),
    "generate_request": (
        GenerateRequest(
            prompt="Once upon a time",
            messages=[
                ChatMessage("system", "Be brief.", "operator", "call_0", [{"id": "call_0"}]),
                ChatMessage("user", [ContentPart("text", "Hello"), ContentPart("image")]),
            ],
            prompt_token_ids=TOKENS,
            model=MODEL,
            stream=True,
            max_tokens=64,
            min_tokens=2,
            ignore_eos=True,
            stop=["\n\n", "Ende"],
            stop_token_ids=[0, 2],
            skip_special_tokens=False,
            temperature=0.75,
            top_p=0.875,
            top_k=40,
            min_p=0.0625,
            repetition_penalty=1.125,
            presence_penalty=0.25,
            frequency_penalty=-0.25,
            logit_bias={"7": -100.0},
            seed=42,
            n=2,
            best_of=3,
            logprobs=True,
            top_logprobs=2,
            echo=True,
            prompt_logprobs=1,
            response_format={"type": "json_object"},
            guided_json={"type": "object", "properties": {"a": {"type": "integer"}}},
            guided_regex="[a-z]+",
            guided_choice=["yes", "no"],
            tools=[{"type": "function", "function": {"name": "f"}}],
            tool_choice="auto",
            request_key="order-17",
            tenant="acme",
            priority=3,
            deadline_ms=30_000,
            cache_salt="salt",
            adapter="poet",
            route="remote",
            speculation="off",
            num_speculative_tokens=3,
            allow_other_numerics=True,
            client_request_id="mine-1",
        ),
        GenerateRequest(),
    ),
    "token_frame": (FRAME, SMALL_FRAME),
    "frame_batch": (
        FrameBatch([msgspec.Raw(encode(FRAME)), msgspec.Raw(encode(SMALL_FRAME))]),
        FrameBatch([]),
    ),
    "finished": (
        Finished(
            REQUEST,
            2,
            "stop",
            USAGE,
            TIMINGS,
            20,
            96,
            choice=1,
            seed=42,
            stop_reason="Ende",
            model=MODEL,
            route="remote",
            route_reason="long_prompt",
            numerics=NUMERICS,
            trace_id=TRACE,
            prompt=ECHOED_PROMPT,
        ),
        Finished(REQUEST, 0, "length", SMALL_USAGE, Timings(), 3, 11),
    ),
    "completion": (
        Completion(
            REQUEST,
            2,
            [
                Choice(
                    text="Ja",
                    token_ids=TOKENS,
                    finish_reason="stop",
                    index=1,
                    stop_reason=2,
                    logprobs=[LOGPROBS],
                    seed=43,
                )
            ],
            USAGE,
            TIMINGS,
            seed=42,
            model=MODEL,
            route="local",
            route_reason="short_prompt",
            numerics=NUMERICS,
            trace_id=TRACE,
            prompt=ECHOED_PROMPT,
        ),
        Completion(
            REQUEST,
            0,
            [Choice(text="", token_ids=PackedInts(), finish_reason="abort")],
            SMALL_USAGE,
            Timings(),
        ),
    ),
    "cancel": (Cancel(REQUEST, 2, "deadline"), Cancel(REQUEST)),
    "cancelled": (Cancelled(REQUEST, "decoding", was_ended_here=True), Cancelled(REQUEST)),
    "resume": (Resume(REQUEST, "_INBOX.abc.2", 17, 1), Resume(REQUEST, "_INBOX.abc.2")),
    "prefill_job": (
        PrefillJob(
            **JOB,
            decode_worker_id=DECODE_WORKER,
            decode_host_id=HOST,
            num_cached_tokens_at_decode=8,
        ),
        PrefillJob(**SMALL_JOB, decode_worker_id=DECODE_WORKER, decode_host_id=HOST),
    ),
    "decode_job": (DecodeJob(**JOB, hand_over=HAND_OVER), DecodeJob(**SMALL_JOB)),
    "kv_refused": (KvRefused("no_blocks", "4 wanted", 3), KvRefused("expired")),
    "match": (
        Match(TOKENS, LAYOUT, "salt", "poet", FINGERPRINT, NUMERICS),
        Match(TOKENS, LAYOUT),
    ),
    "matched": (Matched(32, 16), Matched(0)),
    "lease": (
        Lease(
            **ENVELOPE,
            worker_id=PREFILL_WORKER,
            worker_epoch=9,
            num_blocks=3,
            layout=LAYOUT,
            token_ids=TOKENS,
            cache_salt="salt",
            adapter="poet",
            model_fingerprint=FINGERPRINT,
            numerics=NUMERICS,
        ),
        Lease(**ATTEMPT, worker_id=PREFILL_WORKER, worker_epoch=9, num_blocks=3, layout=LAYOUT),
    ),
    "leased": (Leased(LEASE, BLOCKS, 30_000, 32, 16), Leased(LEASE, Blocks(), 30_000)),
    "commit": (
        Commit(
            **ENVELOPE,
            lease_id=LEASE,
            worker_id=PREFILL_WORKER,
            num_tokens=32,
            token_ids=TOKENS,
            grown=BLOCKS,
        ),
        Commit(**ATTEMPT, lease_id=LEASE, worker_id=PREFILL_WORKER, num_tokens=32),
    ),
    "committed": (Committed(2), Committed(0)),
    "adopt": (
        Adopt(
            **ENVELOPE,
            lease_id=LEASE,
            from_worker_id=PREFILL_WORKER,
            to_worker_id=DECODE_WORKER,
            to_worker_epoch=11,
        ),
        Adopt(
            **ATTEMPT,
            lease_id=LEASE,
            from_worker_id=PREFILL_WORKER,
            to_worker_id=DECODE_WORKER,
            to_worker_epoch=11,
        ),
    ),
    "adopted": (Adopted(LEASE, BLOCKS, 30_000), Adopted(LEASE, Blocks(), 30_000)),
    "renew": (
        Renew(DECODE_WORKER, 11, [LeaseRenewal(LEASE, BLOCKS, 1), LeaseRenewal(OTHER_LEASE)]),
        Renew(DECODE_WORKER, 11, []),
    ),
    "renewed": (Renewed(30_000, [OTHER_LEASE]), Renewed(30_000)),
    "release": (
        Release(
            **ENVELOPE, lease_id=LEASE, worker_id=DECODE_WORKER, grown=BLOCKS, is_tombstone=True
        ),
        Release(**ATTEMPT),
    ),
    "released": (Released(was_held=False), Released()),
    "grant": (Grant(DECODE_WORKER, 11, 16, BLOCKS), Grant(DECODE_WORKER, 11, 16)),
    "granted": (Granted(BLOCKS, 40), Granted(Blocks(), 0)),
    "reclaim": (Reclaim(DECODE_WORKER, 4, REQUEST, 2), Reclaim(DECODE_WORKER, 4)),
    "reclaimed": (Reclaimed(DECODE_WORKER, BLOCKS), Reclaimed(DECODE_WORKER)),
    "fork": (
        Fork(
            **ENVELOPE,
            lease_id=LEASE,
            worker_id=DECODE_WORKER,
            worker_epoch=11,
            to_request_id=OTHER_REQUEST,
            to_attempt=1,
            num_tokens=33,
            num_blocks=2,
        ),
        Fork(
            **ATTEMPT,
            lease_id=LEASE,
            worker_id=DECODE_WORKER,
            worker_epoch=11,
            to_request_id=OTHER_REQUEST,
            to_attempt=1,
            num_tokens=33,
        ),
    ),
    "forked": (Forked(OTHER_LEASE, BLOCKS, 2, 30_000), Forked(OTHER_LEASE, Blocks(), 0, 30_000)),
    "pull": (
        Pull(
            **ENVELOPE,
            lease_id=LEASE,
            source_host_id=OTHER_HOST,
            source_lease_id=OTHER_LEASE,
            source=OTHER_BLOCKS,
            first_block_idx=2,
            layout=LAYOUT,
            plane="shared_memory",
        ),
        Pull(
            **ATTEMPT,
            lease_id=LEASE,
            source_host_id=OTHER_HOST,
            source_lease_id=OTHER_LEASE,
            source=OTHER_BLOCKS,
            first_block_idx=0,
            layout=LAYOUT,
        ),
    ),
    "pulled": (Pulled(3, 2**33), Pulled(0, 0)),
    "audit": (Audit(with_leases=True), Audit()),
    "audited": (
        Audited(
            **BOOKS,
            num_late_messages=3,
            oldest_lease_ms=1_500,
            problems=["block 7 is counted twice"],
            leases=[LeaseSummary(LEASE, REQUEST, 2, DECODE_WORKER, 3, 2, 28_500)],
            num_indexed=13,
        ),
        Audited(**BOOKS),
    ),
    "arena_hello": (ArenaHello(DECODE_WORKER, 11, 4_321), ArenaHello(DECODE_WORKER, 0, 1)),
    "arena_welcome": (
        ArenaWelcome(HOST, 1_234, "arena-1234", 64, LAYOUT, 30_000),
        ArenaWelcome(HOST, 0, "arena-0", 2, LAYOUT, 100),
    ),
    "draft_open": (
        DraftOpen(**ENVELOPE, token_ids=TOKENS, model=MODEL, tokenizer_fingerprint=FINGERPRINT),
        DraftOpen(**ATTEMPT, token_ids=TOKENS),
    ),
    "draft_close": (
        DraftClose(**ENVELOPE, num_drafted_tokens=6, num_tested_tokens=5, num_accepted_tokens=2),
        DraftClose(**ATTEMPT),
    ),
    "draft_job": (
        DraftJob([DraftWant(REQUEST, 2, 33, TOKENS, 4, is_whole=True)]),
        DraftJob([]),
    ),
    "draft_tokens": (
        DraftTokens(
            [DraftProposal(REQUEST, 2, 33, TOKENS, is_lost=True, probabilities=[0.5, 0.25, 1.0])]
        ),
        DraftTokens([]),
    ),
    "worker_record": (
        WorkerRecord(
            DECODE_WORKER,
            "decode",
            11,
            1,
            "0.1.0",
            MODEL,
            FINGERPRINT,
            LAYOUT,
            NUMERICS,
            HOST,
            32,
            64,
            2_048,
            is_draining=True,
        ),
        WorkerRecord(DECODE_WORKER, "decode", 11, 1, "0.1.0"),
    ),
    "worker_report": (
        WorkerReport(
            DECODE_WORKER,
            "decode",
            11,
            7,
            32,
            30,
            num_free_blocks=40,
            num_blocks=64,
            host_id=HOST,
            scheduler_epoch=41,
            is_full=True,
            is_draining=True,
            held=[
                HeldSequence(
                    request_id=REQUEST,
                    attempt=2,
                    phase="decoding",
                    next_index=17,
                    token_ids=TOKENS,
                )
            ],
            ended=[
                EndedSequence(
                    request_id=OTHER_REQUEST,
                    attempt=1,
                    was_answered=True,
                    finish_reason="stop",
                    code="internal_error",
                    message="why",
                    usage=USAGE,
                    ttft_ms=15.5,
                    total_ms=60.0,
                )
            ],
        ),
        WorkerReport(DECODE_WORKER, "decode", 11, 7, 32, 32),
    ),
    "report_request": (ReportRequest(41), ReportRequest()),
    "leader_record": (LeaderRecord(WorkerId("scheduler-1")), LeaderRecord(WorkerId(""))),
    "kv_event": (
        KvEvent(HOST, 1_234, 5, [b"\x00\xff" * 8], [b"\x01" * 16]),
        KvEvent(HOST, 1_234, 5, [], []),
    ),
    "phase_event": (
        PhaseEvent(DECODE_WORKER, 11, 5, REQUEST, 2, "decoding"),
        PhaseEvent(DECODE_WORKER, 0, 0, REQUEST, 0, "unknown"),
    ),
    "dead_letter": (
        DeadLetter("expired", b'{"prompt": "x"}', 3, "deadline passed"),
        DeadLetter("expired", b"", 1),
    ),
}

SEEN_BY_CLIENTS = (
    "generate_request",
    "accepted",
    "token_frame",
    "finished",
    "failed",
    "completion",
    "cancel",
    "cancelled",
    "resume",
    "audit",
    "audited",
)

CASES = [
    (name, size, encoding)
    for name in SAMPLES
    for size in ("rich", "minimal")
    for encoding in ("msgpack", "json")
    if encoding == "msgpack" or name in SEEN_BY_CLIENTS
]


def sample_of(name: str, size: str) -> msgspec.Struct:
    return SAMPLES[name][("rich", "minimal").index(size)]


def read_golden(path: Path) -> bytes:
    text = path.read_text(encoding="utf-8")
    return bytes.fromhex(text) if path.suffix == ".hex" else text.removesuffix("\n").encode()


def write_golden(path: Path, payload: bytes) -> None:
    """Write a missing file; what stands is the protocol and is never overwritten."""
    text = payload.decode() if path.suffix == ".json" else payload.hex("\n", 32)
    with path.open("x", encoding="utf-8") as file:
        file.write(text + "\n")


@pytest.mark.parametrize(("name", "size", "encoding"), CASES)
def test_bytes_are_those_that_were_frozen(name: str, size: str, encoding: Any) -> None:
    message = sample_of(name, size)
    path = GOLDEN / f"{name}.{size}.{'json' if encoding == 'json' else 'msgpack.hex'}"
    payload = encode(message, encoding)
    if not path.exists() and os.environ.get("SLIPSTREAM_WRITE_GOLDEN") == "1":
        write_golden(path, payload)
    if not path.exists():
        pytest.fail(
            f"golden/{path.name} is missing; after a look at the new bytes write it with "
            "`SLIPSTREAM_WRITE_GOLDEN=1 pytest tests/wire`"
        )
    frozen = read_golden(path)

    assert frozen == payload


@pytest.mark.parametrize(("name", "size", "encoding"), CASES)
def test_frozen_bytes_are_still_understood(name: str, size: str, encoding: Any) -> None:
    message = sample_of(name, size)
    path = GOLDEN / f"{name}.{size}.{'json' if encoding == 'json' else 'msgpack.hex'}"
    decode = decode_request if name == "generate_request" else decoder_of(type(message)).decode

    assert message == decode(read_golden(path))


def test_everything_that_travels_has_a_sample() -> None:
    """Tagged structs travel; GenerateRequest has no tag, so that clients need to send none."""
    tags = {
        kind.__struct_config__.tag
        for module in MODULES
        for kind in vars(importlib.import_module(f"slipstream.shared.messages.{module}")).values()
        if isinstance(kind, msgspec.StructMeta) and kind.__struct_config__.tag is not None
    }

    assert tags | {"generate_request"} == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_of_the_type_they_are_named_after(name: str) -> None:
    rich, minimal = SAMPLES[name]

    assert type(rich) is type(minimal)
    assert rich.__struct_config__.tag in {name, None}


def default_of(field: msgspec.structs.FieldInfo) -> object:
    """Return a field's default, or NODEFAULT for a required one."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


@pytest.mark.parametrize("name", SAMPLES)
def test_rich_sample_sets_every_field_and_minimal_one_none(name: str) -> None:
    rich, minimal = SAMPLES[name]
    optional = [f for f in msgspec.structs.fields(rich) if not f.required]
    left_out = [f.name for f in optional if getattr(rich, f.name) == default_of(f)]
    set_anyway = [f.name for f in optional if getattr(minimal, f.name) != default_of(f)]

    assert ([], []) == (left_out, set_anyway)


def test_bytes_of_older_versions_are_still_understood() -> None:
    """What lies in `golden/older/` is named `<message>.<anything>.json` or `.msgpack.hex`."""
    for path in (GOLDEN / "older").glob("*.*"):
        kind = type(SAMPLES[path.name.partition(".")[0]][0])

        assert isinstance(decoder_of(kind).decode(read_golden(path)), kind), path.name


def test_no_golden_file_is_left_over() -> None:
    known = {
        f"{name}.{size}.{'json' if encoding == 'json' else 'msgpack.hex'}"
        for name, size, encoding in CASES
    }

    assert known == {path.name for path in GOLDEN.iterdir() if path.is_file()}
