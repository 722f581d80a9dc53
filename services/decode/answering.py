"""What a decode worker answers to what it is told, if who tells it may."""

from typing import Any

from slipstream.services.decode.intake import as_job
from slipstream.services.decode.parts import DecodeParts
from slipstream.shared.messages.generate import Cancel, Resume
from slipstream.shared.messages.jobs import DecodeJob
from slipstream.shared.messages.kv import Prefilled, Reclaim
from slipstream.shared.messages.reports import Drain, ReportRequest, WorkerReport
from slipstream.shared.telemetry.context import SpanContext

_OF_SCHEDULER = DecodeJob | Cancel | Resume | ReportRequest


async def answer(parts: DecodeParts, message: Any, context: SpanContext | None) -> Any:
    """Do what a message says and return the answer. Any: the topic's unions."""
    if isinstance(message, _OF_SCHEDULER):
        refusal = parts.reporter.epochs.refusal(message)
        if refusal is not None:
            return refusal
    match message:
        case DecodeJob():
            return parts.jobs.accept(message, context)
        case Resume():
            return await parts.publisher.resume(message)
        case Drain() | ReportRequest():
            return _report(parts, message)
        case _:
            return _change(parts, message)


def _change(parts: DecodeParts, message: Cancel | Prefilled | Reclaim) -> Any:
    # Any: as above
    match message:
        case Cancel():
            return parts.jobs.cancel(message)
        case Prefilled():
            return parts.jobs.prefilled(message)
        case Reclaim():
            return parts.steps.reclaim(message)


def _report(parts: DecodeParts, message: Drain | ReportRequest) -> WorkerReport:
    if isinstance(message, Drain):
        parts.draining.begin()
    elif message.with_jobs:
        jobs = [as_job(sequence) for sequence in parts.jobs.sequences()]
        return parts.reporter.report_with_jobs(jobs)
    return parts.reporter.report(is_full=True)
