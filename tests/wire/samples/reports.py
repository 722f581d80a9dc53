"""Samples of what workers and the scheduler say of themselves."""

import msgspec

from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.jobs import PrefillJob
from slipstream.shared.messages.reports import (
    DeadLetter,
    Drain,
    EndedSequence,
    ForwardedRequest,
    HeldSequence,
    KvEvent,
    LeaderRecord,
    PhaseEvent,
    ReportRequest,
    RequestAdmitted,
    RequestsSettled,
    SchedulerState,
    WorkerDeath,
    WorkerRecord,
    WorkerReport,
)

from .jobs import SMALL_JOB
from .parts import (
    DECODE_WORKER,
    FINGERPRINT,
    HOST,
    LAYOUT,
    MODEL,
    NUMERICS,
    OTHER_REQUEST,
    REQUEST,
    RICH_SPAN,
    SPAN,
    TOKENS,
    USAGE,
)

SAMPLES: dict[str, tuple[msgspec.Struct, msgspec.Struct]] = {
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
            kv_class="model|layout|numerics",
            prompt_tokens_per_s=812.5,
            pulled_tokens_per_s=9000.0,
            jobs=[PrefillJob(**SMALL_JOB, decode_worker_id=DECODE_WORKER, decode_host_id=HOST)],
            deaths=[WorkerDeath(worker_id=DECODE_WORKER, epoch=11, in_step=[(REQUEST, 2)])],
        ),
        WorkerReport(DECODE_WORKER, "decode", 11, 7, 32, 32),
    ),
    "drain": (Drain(), Drain()),
    "report_request": (ReportRequest(41, with_jobs=True), ReportRequest()),
    "leader_record": (LeaderRecord(WorkerId("scheduler-1")), LeaderRecord(WorkerId(""))),
    "request_admitted": (
        RequestAdmitted(
            scheduler_epoch=41,
            digest=b"\x01" * 16,
            request_id=REQUEST,
            reply="_INBOX.abc.1",
            seed=7,
            root_span=RICH_SPAN,
            attempt=2,
            num_choices=3,
            is_streamed=True,
            message=ForwardedRequest(
                subject="slipstream.v1.generate",
                payload=b'{"prompt": "x"}',
                headers={"traceparent": "00"},
                elapsed_ms=2.75,
            ),
        ),
        RequestAdmitted(
            scheduler_epoch=41,
            digest=b"",
            request_id=REQUEST,
            reply="_INBOX.abc.1",
            seed=7,
            root_span=SPAN,
        ),
    ),
    "requests_settled": (
        RequestsSettled(scheduler_epoch=41, request_ids=[REQUEST], digests=[b"\x01" * 16]),
        RequestsSettled(scheduler_epoch=41),
    ),
    "scheduler_state": (
        SchedulerState(
            scheduler_id=WorkerId("scheduler-1"), state="standby", scheduler_epoch=41, is_new=True
        ),
        SchedulerState(scheduler_id=WorkerId("scheduler-1"), state="active"),
    ),
    "kv_event": (
        KvEvent(HOST, 1_234, 5, [b"\x00\xff" * 8], [b"\x01" * 16]),
        KvEvent(HOST, 1_234, 5, [], []),
    ),
    "phase_event": (
        PhaseEvent(DECODE_WORKER, 11, 5, REQUEST, 2, "decoding"),
        PhaseEvent(DECODE_WORKER, 0, 0, REQUEST, 0, "unknown"),
    ),
    "dead_letter": (
        DeadLetter(
            "expired",
            b'{"prompt": "x"}',
            3,
            "deadline passed",
            "seq-7",
            "slipstream.v1.submit",
        ),
        DeadLetter("expired", b"", 1),
    ),
}
