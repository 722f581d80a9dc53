"""Records, reports and workers as the scheduler's tests need them."""

import asyncio
from pathlib import Path
from typing import Any

from slipstream.services.scheduler.admission import AdmittedRequest
from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import DECODE, PREFILL
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.ids import HostId, RequestId, WorkerId
from slipstream.shared.messages.common import Accepted, Phase, Role
from slipstream.shared.messages.generate import Cancel, Cancelled
from slipstream.shared.messages.jobs import ReplyTarget
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import (
    EndedSequence,
    HeldSequence,
    ReportRequest,
    WorkerReport,
)
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.scheduling.prompt_hashes import PromptHashes
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.deadline import Deadline

HOST = HostId("h")
INBOX = "_INBOX.client.1"


def make_config(**fields: Any) -> SchedulerConfig:
    return SchedulerConfig(cache_dir=Path("/nowhere"), engine="fake", is_test_mode=True, **fields)


def make_record(
    request: str = "r",
    *,
    priority: int = 0,
    num_bytes: int = 10,
    deadline_ms: int | None = 60_000,
    is_streamed: bool = True,
    **fields: Any,
) -> RequestRecord:
    admitted: dict[str, Any] = {
        "prompt_token_ids": PackedInts([1, 2, 3]),
        "sampling": SamplingParameters(seed=1, max_tokens=8),
        "is_streamed": is_streamed,
        "route": "remote",
        "priority": priority,
        "deadline_ms": deadline_ms or 0,
        "tenant": "",
        "cache_salt": "",
        "allow_other_numerics": False,
        "num_bytes": num_bytes,
    }
    admitted |= fields
    hashes = PromptHashes(admitted["prompt_token_ids"], admitted["cache_salt"])
    return RequestRecord(
        request_id=RequestId(request),
        request=AdmittedRequest(**admitted, hashes=hashes),
        reply=ReplyTarget(INBOX, is_streamed=is_streamed),
        root=Tracer().start("root"),
        deadline=Deadline.from_ms(deadline_ms),
    )


def make_report(
    worker_id: str,
    role: Role = "decode",
    *,
    number: int = 1,
    held: list[HeldSequence] | None = None,
    ended: list[EndedSequence] | None = None,
    num_seats: int = 4,
    **fields: Any,
) -> WorkerReport:
    return WorkerReport(
        worker_id=WorkerId(worker_id),
        role=role,
        number=number,
        num_seats=num_seats,
        held=held or [],
        ended=ended or [],
        **{"epoch": 1, "host_id": HOST, "num_free_seats": num_seats, **fields},
    )


def held(
    request: str = "r", attempt: int = 1, phase: Phase = "decoding", **fields: Any
) -> HeldSequence:
    return HeldSequence(request_id=RequestId(request), attempt=attempt, phase=phase, **fields)


def ended(request: str = "r", attempt: int = 1, **fields: Any) -> EndedSequence:
    return EndedSequence(request_id=RequestId(request), attempt=attempt, **fields)


class Worker:
    """Answers jobs, cancels and probes as a test wants."""

    def __init__(self, worker_id: str, role: Role) -> None:
        self.worker_id = WorkerId(worker_id)
        self.role: Role = role
        self.jobs: list[Any] = []
        self.cancels: list[Cancel] = []
        self.answer_job: Any = None  # else Accepted
        self.answer_cancel: Any = None  # else Cancelled
        self.is_silent = False
        self.num_reports = 100
        self.heard = asyncio.Event()
        self._subscription: Any = None

    async def listen(self, bus: MemoryBus) -> "Worker":
        topic = DECODE if self.role == "decode" else PREFILL
        subject = topic.subject(worker_id=self.worker_id)
        self._subscription = await serve(bus, subject, topic, self._answer)
        return self

    async def die(self) -> None:
        await self._subscription.stop()

    async def _answer(self, message: Any, _incoming: Incoming) -> Any:
        self.heard.set()
        if isinstance(message, Cancel):
            self.cancels.append(message)
            answer = self.answer_cancel or Cancelled(request_id=message.request_id)
        elif isinstance(message, ReportRequest):
            self.num_reports += 1
            answer = make_report(self.worker_id, self.role, number=self.num_reports)
        else:
            self.jobs.append(message)
            answer = self.answer_job or Accepted(
                request_id=message.request_id, attempt=message.attempt
            )
        return None if self.is_silent else answer


async def until(is_true: Any, timeout_s: float = 5.0) -> None:
    """Return when a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not is_true():
            await asyncio.sleep(0.002)
