"""Sequences as the decode worker's tests need them, on the fake engine's vocabulary."""

from typing import Any

from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.stopping import StopChecker
from slipstream.services.decode.stream import TokenLog
from slipstream.shared.ids import LeaseId, RequestId
from slipstream.shared.messages.jobs import DecodeJob, Encoding, ReplyTarget
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.sampling import SampledToken, Sampler
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.deadline import Deadline

SPAN = SpanContext("1" * 32, "1" * 16)
INBOX = "_INBOX.client.1"


class Letters:
    """A detokenizer of one letter a token."""

    def push(self, token_id: int) -> str:
        return chr(token_id)

    def flush(self) -> str:
        return ""


def make_job(
    prompt: list[int],
    *,
    request: str = "r",
    attempt: int = 1,
    is_streamed: bool = True,
    encoding: Encoding = "json",
    output: list[int] | None = None,
    priority: int = 0,
    **sampling: Any,
) -> DecodeJob:
    return DecodeJob(
        request_id=RequestId(request),
        attempt=attempt,
        model="fake",
        prompt_token_ids=PackedInts(prompt),
        output_token_ids=PackedInts(output or []),
        sampling=SamplingParameters(seed=1, temperature=0.0, **sampling),
        reply=ReplyTarget(INBOX, encoding=encoding, is_streamed=is_streamed),
        root_span=SPAN,
        attempt_span=SPAN,
        elapsed_ms=100.0,
        priority=priority,
    )


def make_sequence(prompt: list[int], job: DecodeJob | None = None, **fields: Any) -> DecodeSequence:
    """Return a sequence as after its acceptance; `fields` are those of the job and sampling."""
    job = job or make_job(prompt, **fields)
    sequence = DecodeSequence(
        job=job,
        token_ids=list(prompt),
        sampler=Sampler(job.sampling, prompt),
        checker=StopChecker(job.sampling, (), 1000, Letters()),
        log=TokenLog(job),
        deadline=Deadline(None),
        span=Tracer().start("test"),
        max_num_tokens=1000,
    )
    sequence.lease_id = LeaseId(f"lease-{job.request_id}")
    return sequence


def say(sequence: DecodeSequence, text: str) -> None:
    """Emit a token a letter."""
    for letter in text:
        sequence.emit(SampledToken(ord(letter)))
